// Gradients of the row-wise operations, of parameters and of the loss: formulas in kernels/*_backward.hpp. All views
// of one call have unit stride on the last axis; grad, x and what is made of them have one shape and dtype. Sums over
// rows are cut by sizes alone, so that no bit depends on the number of threads. Throws std::bad_alloc and Interrupted.
#pragma once

#include <vector>

#include "base/gradient_args.hpp"

namespace simdformer {

void activation_backward(Activation kind, const View& grad, const View& x, const View& out);
void swiglu_backward(const View& grad, const View& gate, const View& up, const View& d_gate,
                     const View& d_up);
void log_softmax(const View& x, const View& out);
// y is the output of softmax(x / temperature) or, where `is_log`, of log_softmax(x).
void softmax_backward(const View& grad, const View& y, double temperature, bool is_log, const View& out);

// rms_norm, or layer_norm where `centred`. Null: no weight, or not wanted. d_weight and d_bias (n) contiguous, of the
// accumulator's type.
struct NormBackward {
  View grad, x, dx;              // dx may be one of the others
  const View* weight = nullptr;  // (n), contiguous, any dtype that may stand beside x
  double eps = 0;
  bool centred = false;
  const View *d_weight = nullptr, *d_bias = nullptr;
};
void norm_backward(const NormBackward& call);

// out (n), contiguous, of the accumulator's type = the sum of all rows of x (..., n)
void sum_over_rows(const View& x, const View& out);

// out (V, E) of the accumulator's type, any leading stride: row ids[i] += row i of grad (count, E), in the order of i
void embedding_backward(const View& grad, const int64_t* ids, int64_t count, const View& out);

// The loss of rows of logits (..., V): labels, lse and loss have one entry a row, labels as CrossEntropyArgs has them.
struct CrossEntropy {
  View logits;
  const int64_t* labels;
  int64_t vocabulary;
  double label_smoothing = 0, z_loss = 0, softcap = 0;  // softcap 0: none
};
void cross_entropy(const CrossEntropy& call, double* lse, double* loss);
// out may be logits. scales: one a row, or null for `scale`
void cross_entropy_backward(const CrossEntropy& call, const double* lse, const double* scales, double scale,
                            const View& out);

// AdamW on contiguous numbers, see kernels/optim.hpp.
void adamw(const AdamWArgs& args);
double sum_of_squares(const View& x);

}  // namespace simdformer
