// Weights in few bits: what a quantized weight is made from, and what can be read from it again. Its product
// with x is in core/linear.hpp.
#pragma once

#include "base/array.hpp"
#include "core/memory.hpp"
#include "core/quantized_blocks.hpp"

namespace simdformer {

// A weight (rows, cols) = (outputs, inputs) in slices (base/quantized_args.hpp): the same bytes on every
// instruction set, lossless both ways. Rows are padded to whole slices of 64, with zeros.
class QuantizedWeight {
 public:
  // One whose rows are still to be filled in; cols is a multiple of type.block.
  QuantizedWeight(const QuantizedType& type, int64_t rows, int64_t cols);

  // The blocks (count, cols / type.block, type.nbytes) of rows from `first` on, a multiple of 16, and as many but at the end. Pieces may be
  // filled in by several threads at a time.
  void fill(const uint8_t* blocks, int64_t first, int64_t count);

  // The bytes that such a weight takes.
  static int64_t size_of(const QuantizedFormat& format, int64_t rows, int64_t cols);

  // value = scale * code - minimum. codes (rows, cols) of 4 or 8 bits, scales and minimums (null: none)
  // (rows, cols / group), contiguous; group is 32, 64 or 128 and divides cols.
  struct Groups {
    int bits, group;
    const uint8_t* codes;
    const float *scales, *minimums;
  };
  QuantizedWeight(const Groups& groups, int64_t rows, int64_t cols);

  // The numbers of `weight` (rows, cols), float32 or 16 bits, unit last stride, in a type that quantize can
  // write, whose block divides cols.
  QuantizedWeight(const QuantizedType& type, const View& weight);

  // The blocks that it was made from, if it was.
  void write_blocks(uint8_t* blocks) const;

  // Its codes, without offset (as int8, or uint8 when made from groups), scales and minimums (null: not
  // wanted), contiguous.
  void write_groups(uint8_t* codes, float* scales, float* minimums) const;

  // out (rows, cols): float32, unit last stride.
  void dequantize(const View& out) const;

  // Row ids[i] as row i of `out` (count, cols): any float dtype, unit last stride; 0 <= ids[i] < rows.
  void gather(const int64_t* ids, const View& out) const;

  // What quantizing lost: zeros where the numbers were never seen.
  const QuantizingLoss& loss() const { return loss_; }

  const QuantizedType* type() const { return type_; }  // null when made from groups
  const QuantizedFormat& format() const { return format_; }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int64_t nbytes() const { return nbytes_; }
  const uint8_t* data() const { return reinterpret_cast<const uint8_t*>(memory_.get()); }

 private:
  void allocate_slices();
  template <class Fill>
  void fill_rows(int64_t first, int64_t count, Fill fill);
  template <class Use>
  void for_each_span(int64_t row, Use use) const;

  const QuantizedType* type_ = nullptr;
  QuantizedFormat format_;
  int64_t rows_ = 0, cols_ = 0, nbytes_ = 0;
  QuantizingLoss loss_{0, 0, 0};
  WeightMemory memory_;
};

}  // namespace simdformer
