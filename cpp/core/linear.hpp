// linear: y = x W^T + b, for plain weights as they lie in memory and for weights that were repacked once for
// speed.
#pragma once

#include "base/array.hpp"
#include "core/memory.hpp"
#include "core/quantized.hpp"

namespace simdformer {

// A weight (rows, cols) = (outputs, inputs) in panels of 16 outputs (base/panels.hpp): the same bytes on
// every ISA, 64-byte aligned, in huge pages where it is large. Packing and unpacking move bits and change
// none.
class PackedWeight {
 public:
  // weight: (rows, cols), any leading stride, unit last stride. Throws std::bad_alloc.
  explicit PackedWeight(const View& weight);
  // One whose rows are still to be filled in.
  PackedWeight(int64_t rows, int64_t cols, DType dtype);

  // One in memory of the caller's, of size_of(...) bytes, 64-byte aligned, that outlives it.
  PackedWeight(int64_t rows, int64_t cols, DType dtype, char* memory);
  static int64_t size_of(int64_t rows, int64_t cols, DType dtype);

  // Rows from `first` on, a multiple of 16: (count, cols), of its dtype, any leading stride, unit last stride.
  // Whole panels, but at the end. Pieces may be filled in by several threads at a time.
  void fill(int64_t first, const View& rows);

  // Writes the weight back into `out`: (rows, cols), the same dtype, unit last stride.
  void unpack(const View& out) const;

  // Row ids[i] as row i of `out` (count, cols): any float dtype, unit last stride; 0 <= ids[i] < rows.
  void gather(const int64_t* ids, const View& out) const;

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  DType dtype() const { return dtype_; }
  int64_t nbytes() const { return nbytes_; }  // with the padding
  const char* data() const { return memory_.get(); }

 private:
  int64_t rows_ = 0, cols_ = 0, nbytes_ = 0;
  DType dtype_ = DType::f32;
  WeightMemory memory_;
};

// One weight of a call: plain, packed or quantized, with its bias and its result.
struct LinearOperand {
  const View* weight = nullptr;                // (O, I), any leading stride, unit last stride
  const PackedWeight* packed = nullptr;        // instead of weight
  const QuantizedWeight* quantized = nullptr;  // instead of both
  const View* bias = nullptr;                  // (O), any stride; null when absent
  View out;                                    // (..., O) with the leading axes of x
  int64_t sum_terms = 0;                       // of a partial sum; 0: as many as the forward has
  int64_t begin = 0, end = 0;                  // of expert_linear: which of the chosen rows are its own
};

// How quantized weights are multiplied: by x as 16-bit integers, a scale for every 32 of them, or by x as
// float32.
enum class Arithmetic : uint8_t { int16, float32 };

// out = x W^T + b for every operand, in one pass over x (..., I). x and out: any leading strides, unit last
// stride. out has x's dtype; weight and bias have it too, or are 16-bit beside float32, or float32 beside
// 16-bit; a quantized weight has no dtype, and x is not float64 beside it. Sums are float32 (float64 for
// float64), rounded once.
//
// The bits of a row of out do not depend on the number of threads. With packed and
// quantized weights they do not depend on the other rows either; with plain weights up to kDirectRows rows
// (base/linear_args.hpp) take another order of summation than more of them.
void linear(const View& x, const LinearOperand* operands, int count,
            Arithmetic arithmetic = Arithmetic::int16);

// The same of x^T, for x (I, rows) with a unit last stride, beside a packed weight.
void linear_of_columns(const View& x, const LinearOperand& operand);

// What expert_linear makes: rows `rows[0 ... count)` of the results, row p out of row p / share of x.
struct ChosenRows {
  const int64_t* rows;
  int64_t count, share;
};

// The same where each operand has some of the chosen rows alone, [begin, end) of them, as the experts of a
// mixture have. Operands lie in the order of their rows; those with the same rows lie side by side.
void expert_linear(const View& x, const LinearOperand* operands, int count, const ChosenRows& chosen,
                   Arithmetic arithmetic = Arithmetic::int16);

}  // namespace simdformer
