// The kernels of one instruction set, as the compiler's flags and SF_ISA say. The table is all that leaves
// this object.
#include "base/kernel_table.hpp"
#include "kernels/activation_backward.hpp"
#include "kernels/attention_backward.hpp"
#include "kernels/attention_decode.hpp"
#include "kernels/attention_prefill.hpp"
#include "kernels/convert.hpp"
#include "kernels/cross_entropy.hpp"
#include "kernels/layer_norm.hpp"
#include "kernels/limits.hpp"
#include "kernels/linear.hpp"
#include "kernels/norms_backward.hpp"
#include "kernels/optim.hpp"
#include "kernels/pack.hpp"
#include "kernels/quantize_weight.hpp"
#include "kernels/rms_norm.hpp"
#include "kernels/rope.hpp"
#include "kernels/softmax.hpp"
#include "kernels/transpose.hpp"

namespace simdformer {
namespace SF_ISA {

constexpr KernelTable kernel_table() {
  KernelTable table{};
  table.isa = SF_TEXT(SF_ISA);
  table.bf16_pairs = kBf16Pairs;
  table.panel_rows = kPanelRows;
  table.activation = activation;
  table.swiglu = swiglu;
  table.add = add;
  table.softmax = softmax;
  table.rms_norm = rms_norm;
  table.layer_norm = layer_norm;
  table.rope_table = rope_table;
  table.rope = rope;
  table.convert = convert;
  table.pack = pack;
  table.unpack = unpack;
  table.pack_rows = pack_rows;
  table.quantize_weight = quantize_weight;
  table.quantize_rows = quantize_rows;
  table.dequantize = dequantize;
  table.quantized_scales = quantized_scales;
  table.linear = linear;
  table.attention_pack = attention_pack;
  table.attention_prefill = attention_prefill;
  table.attention_decode = attention_decode;
  table.attention_merge = attention_merge;
  table.attention_backward = attention_backward;
  table.attention_backward_merge = attention_backward_merge;
  table.activation_backward = activation_backward;
  table.swiglu_backward = swiglu_backward;
  table.softmax_backward = softmax_backward;
  table.log_softmax = log_softmax;
  table.norm_backward = norm_backward;
  table.sum_rows = sum_rows;
  table.cross_entropy = cross_entropy;
  table.cross_entropy_backward = cross_entropy_backward;
  table.pack_columns = pack_columns;
  table.transpose = transpose;
  table.adamw = adamw;
  table.sum_squares = sum_squares;
  table.flops_per_step = kFlopsPerStep;
  table.fma_chains = fma_chains;
  table.read_memory = read_memory;
  return table;
}

}  // namespace SF_ISA

const KernelTable* SF_JOIN(table_, SF_ISA)() noexcept {
  static constexpr KernelTable kTable = SF_ISA::kernel_table();
  return &kTable;
}

}  // namespace simdformer
