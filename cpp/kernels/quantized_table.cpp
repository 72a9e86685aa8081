// The kernels of an instruction set that adds to another one, SF_PARENT, how it multiplies bytes: what multiplies
// quantized weights is its own, all others are SF_PARENT's.
#include "base/kernel_table.hpp"
#include "kernels/linear.hpp"
#include "kernels/quantized.hpp"

namespace simdformer {

const KernelTable* SF_JOIN(table_, SF_PARENT)() noexcept;

const KernelTable* SF_JOIN(table_, SF_ISA)() noexcept {
  static const KernelTable kTable = [] {
    KernelTable table = *SF_JOIN(table_, SF_PARENT)();
    table.isa = SF_TEXT(SF_ISA);
    table.quantize_rows = SF_ISA::quantize_rows;
    table.linear = SF_ISA::linear;
    return table;
  }();
  return &kTable;
}

}  // namespace simdformer
