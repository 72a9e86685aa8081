// What the kernels of gradients and of the loss are given. `grad` is the gradient of the forward's output; x,
// grad and out have one dtype. Gradients of parameters are sums over rows, in the accumulator's type. They are
// made as one partial sum for each block of kGradientRows rows, which the caller adds up as a tree: how rows are
// cut depends on their number alone, and so do the bits.
#pragma once

#include "base/kernel_table.hpp"

namespace simdformer {

constexpr int64_t kGradientRows = 32;

// out = grad * f'(x), element by element. Work items as of ActivationArgs.
struct ActivationBackwardArgs {
  Rows grad, x, out;
  Activation kind;
  int64_t segment;
  bool past_caches = false;
};

// y = silu(gate) up: d_gate = grad up silu'(gate), d_up = grad silu(gate). Work items as above.
struct SwigluBackwardArgs {
  Rows grad, gate, up, d_gate, d_up;
  int64_t segment;
};

// From the output y of softmax(x / temperature), or of log_softmax(x). Work items are rows.
struct SoftmaxBackwardArgs {
  Rows grad, y, out;
  double temperature;
  bool is_log;
};

// out = x - log sum exp x. Work items are rows.
struct LogSoftmaxArgs {
  Rows x, out;
};

// rms_norm, or layer_norm where `centred`. Work items are blocks of rows; d_weight and d_bias (blocks, n), null
// where they are not wanted.
struct NormBackwardArgs {
  Rows grad, x, out;
  const void* weight;  // null: ones
  double eps;
  bool centred;
  void *d_weight, *d_bias;
};

// out[b] = the sum of the rows starts[b] ... starts[b + 1]) of x, or of the rows places[starts[b]] ..., in this
// order. Work items are b. out (items, n) in the accumulator's type, `stride` elements from one to the next.
struct SumRowsArgs {
  Rows x;
  const int64_t* places;  // null: the rows themselves
  const int64_t* starts;
  const int64_t* targets;  // which row of out b goes to; null: b
  void* out;
  int64_t stride;
  bool accumulate;
};

// Rows of logits z, capped to softcap tanh(z / softcap) where softcap is not 0: all of the vocabulary, or a block of
// it.
constexpr int64_t kNotCounted = -1, kElsewhere = -2;  // a label that is in another block
struct CrossEntropyArgs {
  Rows logits, out;
  const int64_t* labels;  // one a row: a column, or one of the two above
  int64_t vocabulary;     // columns with those of the other blocks
  double label_smoothing, z_loss, softcap;
  double *lse, *loss;    // (rows)
  const double* scales;  // of each row's gradient; null: `scale` for all
  double scale;
};

// One step of AdamW on `count` numbers of a dtype, float32 or float64. Work items are pieces of `segment` numbers.
struct AdamWArgs {
  DType dtype;
  void *weight, *exp_avg, *exp_avg_sq;
  const void* gradient;
  int64_t count, segment;
  double lr, beta1, beta2, eps, weight_decay;
  double correction1, correction2;  // 1 - beta^step
  double scale;                     // of the gradient
};

// in (depth, rows), row_stride bytes from one row to the next -> out (rows, depth) as PackRowsArgs has it. Work items
// are bands of kTransposedRows rows of out.
constexpr int64_t kTransposedRows = 64;
struct TransposeArgs {
  const char* in;
  int64_t row_stride;
  DType dtype;
  int64_t depth, rows;
  void* out;
  int64_t stride;  // in elements, whole panels
  bool pairs;
};

// sums[i] = the sum of squares of piece i of x. Work items are pieces of one row.
struct SumSquaresArgs {
  Rows x;
  int64_t segment;
  double* sums;
};

}  // namespace simdformer
