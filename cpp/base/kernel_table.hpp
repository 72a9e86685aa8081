// The table of kernels that each instruction set fills, and the operands of the row-wise ones.
//
// A kernel is serial, noexcept, allocates nothing and checks nothing: the caller has validated the arguments,
// owns the memory and splits the work over threads. Each takes its operands as a struct and a range of work
// items.
#pragma once

#include <cstdint>

#include "base/array.hpp"
#include "base/cache.hpp"
#include "base/tuning.hpp"

namespace simdformer {

// ---- operands ---------------------------------------------------------------------------------------------
// All Rows of one struct have the same count. `x` and `out` have the same dtype and length unless said
// otherwise. Parameters (weight, bias) are contiguous vectors of Rows::length in the accumulator's type of x, null
// when absent.
// With `past_caches`, out goes to memory as if there were none; then it is not x.

enum class Activation : uint8_t { silu, gelu, gelu_tanh, relu };

// out = f(x). Work items are rows, or pieces of `segment` elements of one (segments = ceil(length / segment)
// a row).
struct ActivationArgs {
  Rows x, out;
  Activation kind;
  int64_t segment;
  bool past_caches = false;
};

// out = silu(x) * y, or x + y; work items as above
struct PairArgs {
  Rows x, y, out;
  int64_t segment;
  bool past_caches = false;
};

// out = softmax(x / temperature) over each row
struct SoftmaxArgs {
  Rows x, out;
  double temperature;
  bool past_caches = false;
  Cache goal = Cache::first;  // of the rows that come next
};

// out = x / sqrt(mean(x^2) + eps) * weight
struct RmsNormArgs {
  Rows x, out;
  const void* weight;
  DType weight_dtype;  // that of x or of its accumulator
  double eps;
  bool past_caches = false;
};

// out = (x - mean) / sqrt(var + eps) * weight + bias
struct LayerNormArgs {
  Rows x, out;
  const void *weight, *bias;
  double eps;
  bool past_caches = false;
};

enum class RopeLayout : uint8_t { half, interleaved };

// Angles -> table: row p holds cos then sin of position[p] * inv_freq[i], times the attention factor, as the
// accumulator of x (float32 or float64). Work items are positions.
struct RopeTableArgs {
  const int64_t* positions;  // (count)
  const double* inv_freq;    // (half)
  int64_t half;              // rotary_dim / 2
  double attention_factor;
  DType dtype;  // f32 or f64
  void* table;  // (count, 2, half)
};

// Rotates the first 2 * half elements of every row, copies the rest. Work items are rows of x, whose leading
// axes are (..., T): row r uses table row `table_row(r)` = (r / rows_per_sequence) * sequence_stride + r % T.
struct RopeArgs {
  Rows x, out;
  RopeLayout layout;
  int64_t half;
  int64_t seq_len;  // T
  // Rows of x for one entry of its first axis when positions are (B, T), else all.
  int64_t rows_per_sequence;
  int64_t sequence_stride;  // T when positions are (B, T), else 0
  const void* table;
  bool past_caches = false;   // rows of out lie side by side and have kShortRow bytes at most
  Cache goal = Cache::first;  // of the rows that come next
};

// Conversion between float dtypes, row by row.
struct ConvertArgs {
  Rows x, out;  // different dtypes
  int64_t segment;
};

// Linear and attention say what their operands are in base/linear_args.hpp and base/attention_args.hpp.
struct PackArgs;
struct UnpackArgs;
struct PackRowsArgs;
struct QuantizeWeightArgs;
struct DequantizeArgs;
struct QuantizedFormat;
struct LinearArgs;
struct AttentionArgs;
struct AttentionBackwardArgs;
// And gradients in base/gradient_args.hpp.
struct ActivationBackwardArgs;
struct SwigluBackwardArgs;
struct SoftmaxBackwardArgs;
struct LogSoftmaxArgs;
struct NormBackwardArgs;
struct SumRowsArgs;
struct CrossEntropyArgs;
struct AdamWArgs;
struct SumSquaresArgs;
struct TransposeArgs;

struct KernelTable {
  const char* isa;
  bool bf16_pairs;     // linear and attention multiply bfloat16 by bfloat16 without widening them
  int64_t panel_rows;  // of x that pass a slice of panels of float32 or float64 together, at most

  void (*activation)(const ActivationArgs&, int64_t begin, int64_t end) noexcept;
  void (*swiglu)(const PairArgs&, int64_t begin, int64_t end) noexcept;
  void (*add)(const PairArgs&, int64_t begin, int64_t end) noexcept;
  void (*softmax)(const SoftmaxArgs&, int64_t begin, int64_t end) noexcept;
  void (*rms_norm)(const RmsNormArgs&, int64_t begin, int64_t end) noexcept;
  void (*layer_norm)(const LayerNormArgs&, int64_t begin, int64_t end) noexcept;
  void (*rope_table)(const RopeTableArgs&, int64_t begin, int64_t end) noexcept;
  void (*rope)(const RopeArgs&, int64_t begin, int64_t end) noexcept;
  void (*convert)(const ConvertArgs&, int64_t begin, int64_t end) noexcept;

  void (*pack)(const PackArgs&, int64_t begin, int64_t end) noexcept;
  void (*unpack)(const UnpackArgs&, int64_t begin, int64_t end) noexcept;
  void (*pack_rows)(const PackRowsArgs&, int64_t begin, int64_t end) noexcept;
  void (*quantize_weight)(const QuantizeWeightArgs&, int64_t begin, int64_t end) noexcept;
  void (*quantize_rows)(const PackRowsArgs&, int64_t begin, int64_t end) noexcept;
  void (*dequantize)(const DequantizeArgs&, int64_t begin, int64_t end) noexcept;
  // The scales and minimums of 16 columns of a span, from `first` on, as rows of 64 floats: one for each group, or
  // for every 32 inputs of a longer one.
  void (*quantized_scales)(const QuantizedFormat&, const uint8_t* span, int64_t inputs, int64_t first,
                           float* scales, float* minimums) noexcept;
  void (*linear)(const LinearArgs&, void* scratch, int64_t begin, int64_t end) noexcept;
  void (*attention_pack)(const AttentionArgs&, int64_t begin, int64_t end) noexcept;
  void (*attention_prefill)(const AttentionArgs&, void* scratch, int64_t begin, int64_t end) noexcept;
  void (*attention_decode)(const AttentionArgs&, void* scratch, int64_t begin, int64_t end) noexcept;
  void (*attention_merge)(const AttentionArgs&, int64_t begin, int64_t end) noexcept;
  void (*attention_backward)(const AttentionBackwardArgs&, void* scratch, int64_t begin,
                             int64_t end) noexcept;
  void (*attention_backward_merge)(const AttentionBackwardArgs&, int64_t begin, int64_t end) noexcept;

  void (*activation_backward)(const ActivationBackwardArgs&, int64_t begin, int64_t end) noexcept;
  void (*swiglu_backward)(const SwigluBackwardArgs&, int64_t begin, int64_t end) noexcept;
  void (*softmax_backward)(const SoftmaxBackwardArgs&, int64_t begin, int64_t end) noexcept;
  void (*log_softmax)(const LogSoftmaxArgs&, int64_t begin, int64_t end) noexcept;
  void (*norm_backward)(const NormBackwardArgs&, int64_t begin, int64_t end) noexcept;
  void (*sum_rows)(const SumRowsArgs&, int64_t begin, int64_t end) noexcept;
  void (*cross_entropy)(const CrossEntropyArgs&, int64_t begin, int64_t end) noexcept;
  void (*cross_entropy_backward)(const CrossEntropyArgs&, int64_t begin, int64_t end) noexcept;
  void (*pack_columns)(const PackArgs&, int64_t begin, int64_t end) noexcept;
  void (*transpose)(const TransposeArgs&, int64_t begin, int64_t end) noexcept;
  void (*adamw)(const AdamWArgs&, int64_t begin, int64_t end) noexcept;
  void (*sum_squares)(const SumSquaresArgs&, int64_t begin, int64_t end) noexcept;

  // What the machine can do at most; see kernels/limits.hpp.
  int64_t flops_per_step;
  void (*fma_chains)(float* sink, int64_t begin, int64_t end) noexcept;
  void (*read_memory)(const float* data, float* sink, int64_t begin, int64_t end) noexcept;
};

}  // namespace simdformer
