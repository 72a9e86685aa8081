// The choice between the instruction sets' tables of kernels.
#pragma once

#include <string>
#include <vector>

#include "base/kernel_table.hpp"

namespace simdformer {

// The table in use. Reading it is one load; kernels of one call all come from one table.
const KernelTable& kernels() noexcept;

std::vector<std::string> compiled_isas();   // what this build holds, slowest first
std::vector<std::string> available_isas();  // those of them that this machine can run
std::string current_isa();
bool set_isa(const std::string& name);  // any case; false when the name is unknown or cannot run here

}  // namespace simdformer
