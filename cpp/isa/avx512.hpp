// AVX-512 as Intel has it since Skylake-X and AMD since Zen 4. Read by isa.hpp, which lists the names.
#pragma once

#include "isa/avx512_registers.hpp"
#include "isa/no_bf16_pairs.hpp"
