#include "core/linear_backward.hpp"

#include <cstring>
#include <memory>

#include "base/gradient_args.hpp"
#include "base/linear_args.hpp"
#include "base/sizes.hpp"
#include "base/tuning.hpp"
#include "core/activations.hpp"
#include "core/copy.hpp"
#include "core/dispatch.hpp"
#include "core/parallel.hpp"
#include "core/work.hpp"

namespace simdformer {
namespace {

// Products of a partial sum, 0: as many as the forward's have. Factors of pairs have 8 digits: what longer sums lose is
// nothing beside that. Other gradients have about PyTorch's error then, the forward's products less.
int64_t terms_of(DType dtype, int64_t depth) {
  if (kernels().bf16_pairs && dtype == DType::bf16) return kPairTerms;
  return depth >= 2 * kGradientTerms ? kGradientTerms : 0;
}

View matrix(void* data, DType dtype, int64_t rows, int64_t columns) {
  View view;
  view.data = static_cast<char*>(data);
  view.dtype = dtype;
  view.rank = 2;
  view.shape[0] = rows, view.shape[1] = columns;
  view.strides[0] = columns * itemsize(dtype), view.strides[1] = itemsize(dtype);
  return view;
}

int64_t bytes_of_matrix(DType dtype, int64_t rows, int64_t columns) {
  return bytes_of(rows, columns, itemsize(dtype));
}

// Its leading axes as one; copied into `copy` where strides do not allow that.
View as_matrix(const View& x, std::unique_ptr<Scratch>& copy) {
  const int64_t columns = x.shape[x.rank - 1];
  const Rows rows = rows_of(x);
  View view = matrix(x.data, x.dtype, rows.count, columns);
  if (rows.rank <= 1) {
    if (rows.rank == 1) view.strides[0] = rows.strides[0];
    return view;
  }
  copy = std::make_unique<Scratch>(bytes_of_matrix(x.dtype, rows.count, columns));
  View contiguous = x;
  contiguous.data = copy->as<char>();
  for (int64_t axis = x.rank - 1, step = itemsize(x.dtype); axis >= 0; step *= x.shape[axis--])
    contiguous.strides[axis] = step;
  copy_elements(x, contiguous);
  view.data = contiguous.data;
  return view;
}

// The transpose of `matrix` (depth, columns) as a packed weight (columns, depth), in memory of the calling thread's.
class PackedColumns {
 public:
  explicit PackedColumns(const View& matrix)
      : memory_(PackedWeight::size_of(matrix.shape[1], matrix.shape[0], matrix.dtype)),
        weight_(matrix.shape[1], matrix.shape[0], matrix.dtype, memory_.as<char>()) {
    const PackArgs args{matrix.data,     matrix.strides[0], matrix.dtype,
                        matrix.shape[1], matrix.shape[0],   memory_.as<char>()};
    const KernelTable& table = kernels();
    parallel_for(ceil_div(args.depth, kPackedDepth), grain_of_rows(args.columns * kPackedDepth / 4),
                 [&](int64_t begin, int64_t end) { table.pack_columns(args, begin, end); });
  }

  const PackedWeight& weight() const { return weight_; }

 private:
  Scratch memory_;
  PackedWeight weight_;
};

// The numbers of a weight (O, I) that does not lie as such: unpacked, or dequantized to float32.
View plain_weight(const LinearGradient& one, std::unique_ptr<Scratch>& memory) {
  if (one.weight != nullptr) return *one.weight;
  const bool packed = one.packed != nullptr;
  const DType dtype = packed ? one.packed->dtype() : DType::f32;
  const int64_t rows = packed ? one.packed->rows() : one.quantized->rows();
  const int64_t cols = packed ? one.packed->cols() : one.quantized->cols();
  memory = std::make_unique<Scratch>(bytes_of_matrix(dtype, rows, cols));
  const View view = matrix(memory->as<void>(), dtype, rows, cols);
  if (packed)
    one.packed->unpack(view);
  else
    one.quantized->dequantize(view);
  return view;
}

// out = grad W
void multiply_by_weight(const LinearGradient& one, const View& out) {
  std::unique_ptr<Scratch> memory;
  const PackedColumns columns(plain_weight(one, memory));
  LinearOperand operand;
  operand.packed = &columns.weight();
  operand.out = out;
  operand.sum_terms = terms_of(columns.weight().dtype(), columns.weight().cols());
  linear(one.grad, &operand, 1, Arithmetic::float32);
}

void fill_zero(const View& out) {
  const Rows rows = rows_of(out);
  RowCursor row(rows, 0);
  for (int64_t i = 0; i < rows.count; ++i, row.next())
    std::memset(row.get(), 0, static_cast<size_t>(rows.length * itemsize(rows.dtype)));
}

}  // namespace

void linear_backward_x(const LinearGradient* gradients, int count, const View& out) {
  if (out.size() == 0) return;
  const DType sum = accumulator(out.dtype);
  if (count == 1) return multiply_by_weight(gradients[0], out);
  const Rows rows = rows_of(out);
  const int64_t bytes = bytes_of_matrix(sum, rows.count, rows.length);
  const Scratch total(bytes), next(bytes);
  const View sums = matrix(total.as<void>(), sum, rows.count, rows.length);
  const View term = matrix(next.as<void>(), sum, rows.count, rows.length);
  for (int j = 0; j < count; ++j) {
    std::unique_ptr<Scratch> copy;
    LinearGradient one = gradients[j];
    one.grad = as_matrix(one.grad, copy);
    multiply_by_weight(one, j == 0 ? sums : term);
    if (j > 0) add(sums, term, sums);
  }
  View shaped = out;  // sums, with the axes of out
  shaped.data = sums.data;
  shaped.dtype = sum;
  for (int64_t axis = out.rank - 1, step = itemsize(sum); axis >= 0; step *= out.shape[axis--])
    shaped.strides[axis] = step;
  convert_elements(shaped, out);
}

void linear_backward_weight(const LinearGradient* gradients, int count, const View& x, const View* outs) {
  if (x.size() == 0) {
    for (int j = 0; j < count; ++j)
      if (outs[j].size() > 0) fill_zero(outs[j]);
    return;
  }
  std::unique_ptr<Scratch> copy;
  const View rows = as_matrix(x, copy);
  const PackedColumns columns(rows);
  for (int j = 0; j < count; ++j) {
    if (outs[j].size() == 0) continue;
    std::unique_ptr<Scratch> copied;
    LinearOperand operand;
    operand.packed = &columns.weight();
    operand.out = outs[j];
    operand.sum_terms = terms_of(x.dtype, columns.weight().cols());
    linear_of_columns(as_matrix(gradients[j].grad, copied), operand);
  }
}

}  // namespace simdformer
