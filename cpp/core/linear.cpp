#include "core/linear.hpp"

#include <algorithm>
#include <vector>

#include "core/dispatch.hpp"
#include "core/linear_args.hpp"
#include "core/parallel.hpp"
#include "core/work.hpp"

namespace simdformer {
namespace {

// Items of a matrix product to a chunk: its multiplications, or the memory that they wait for.
int64_t grain_of_product(double products_per_item, double bytes_per_item) {
  return grain_of(std::max(products_per_item * cost::product, bytes_per_item * cost::byte));
}

}  // namespace

// ---- packed weights ---------------------------------------------------------------------------------------

PackedWeight::PackedWeight(const View& weight)
    : rows_(weight.shape[0]), cols_(weight.shape[1]), dtype_(weight.dtype) {
  if (rows_ == 0 || cols_ == 0) return;
  const int64_t panels = ceil_div(rows_, kPanelColumns);
  bytes_of(cols_ + 1, kPanelColumns, itemsize(dtype_));
  const int64_t panel_bytes = panel_elements(cols_, dtype_) * itemsize(dtype_);
  nbytes_ = bytes_of(panels, panel_bytes);
  memory_ = allocate(nbytes_);

  const PackArgs args{weight.data, weight.strides[0], dtype_, rows_, cols_, memory_.get()};
  const KernelTable& table = kernels();
  parallel_for(panels, grain_of_product(0, static_cast<double>(panel_bytes) * 4),
               [&](int64_t begin, int64_t end) { table.pack(args, begin, end); });
}

void PackedWeight::unpack(const View& out) const {
  if (rows_ == 0 || cols_ == 0) return;
  const UnpackArgs args{memory_.get(), dtype_, rows_, cols_, out.data, out.strides[0]};
  const KernelTable& table = kernels();
  parallel_for(ceil_div(rows_, kPanelColumns),
               grain_of_product(0, static_cast<double>(cols_) * kPanelColumns * 40),
               [&](int64_t begin, int64_t end) { table.unpack(args, begin, end); });
}

// ---- linear -----------------------------------------------------------------------------------------------

namespace {

LinearWeight weight_of(const LinearOperand& operand, int64_t first_slice) {
  LinearWeight w;
  w.packed = operand.weight == nullptr;
  w.format = nullptr;
  w.row_stride = 0;
  if (operand.quantised != nullptr) {
    w.weight = reinterpret_cast<const char*>(operand.quantised->data());
    w.format = &operand.quantised->format();
    w.dtype = DType::f32;
    w.columns = operand.quantised->rows();
  } else if (operand.packed != nullptr) {
    w.weight = operand.packed->data();
    w.dtype = operand.packed->dtype();
    w.columns = operand.packed->rows();
  } else {
    w.weight = operand.weight->data;
    w.row_stride = operand.weight->strides[0];
    w.dtype = operand.weight->dtype;
    w.columns = operand.weight->shape[0];
  }
  w.bias = operand.bias != nullptr ? operand.bias->data : nullptr;
  w.bias_stride = operand.bias != nullptr ? operand.bias->strides[0] : 0;
  w.bias_dtype = operand.bias != nullptr ? operand.bias->dtype : DType::f32;
  w.out = rows_of(operand.out);
  w.first_slice = first_slice;
  return w;
}

// Rows of x that are taken at a time: they stay within ~32 MB of scratch, and a work item within ~30 ms.
int64_t block_rows(int64_t rows, int64_t depth) {
  constexpr int64_t kFewest = 24, kMost = 528, kElements = int64_t{8} << 20;
  const int64_t most = std::clamp(kElements / std::max<int64_t>(depth, 1), kFewest, kMost);
  const int64_t blocks = ceil_div(rows, most);
  return ceil_div(rows, blocks);
}

// Chunks of rows, when there are too few slices to share out.
int64_t chunks_of(int64_t rows, int64_t slices) {
  constexpr int64_t kItems = 32, kFewest = 48;
  return std::clamp<int64_t>(ceil_div(kItems, slices), 1, std::max<int64_t>(rows / kFewest, 1));
}

}  // namespace

void linear(const View& x, const LinearOperand* operands, int count, Arithmetic arithmetic) {
  const Rows source = rows_of(x);
  std::vector<LinearWeight> weights;
  weights.reserve(static_cast<std::size_t>(count));
  int64_t slices = 0, weight_size = 1;
  for (int i = 0; i < count; ++i) {
    weights.push_back(weight_of(operands[i], slices));
    slices += ceil_div(weights.back().columns, kSliceColumns);
    if (weights.back().format == nullptr) weight_size = std::max(weight_size, itemsize(weights.back().dtype));
  }
  if (source.count == 0 || slices == 0) return;

  const DType sum = accumulator(x.dtype);
  const int64_t depth = source.length;
  const KernelTable& table = kernels();
  LinearArgs args;
  args.x_stride = pitch_of(depth);
  args.all_rows = source.count;
  args.depth = depth;
  args.weights = weights.data();
  args.count = count;

  // x is wanted widened, as pairs of bfloat16 or as integers, or, when the weights differ, in several forms.
  bool widens = false, pairs = false, blocks = false;
  for (const LinearWeight& w : weights) {
    if (w.format != nullptr && arithmetic == Arithmetic::int16)
      blocks = true;
    else if (table.bf16_pairs && x.dtype == DType::bf16 && w.packed && w.dtype == DType::bf16)
      pairs = true;
    else
      widens = true;
  }
  const int64_t step = block_rows(source.count, depth);
  const int64_t elements = bytes_of(step, args.x_stride), row_blocks = depth / kBlockInputs;
  const Scratch widened(widens ? bytes_of(elements, itemsize(sum)) : 0);
  const Scratch paired(pairs ? bytes_of(elements, itemsize(DType::bf16)) : 0);
  const Scratch blocked(blocks ? bytes_of(step, row_blocks, int64_t{sizeof(ActivationBlock)}) : 0);
  args.x = widened.as<void>();
  args.x_pairs = pairs ? paired.as<bfloat16>() : nullptr;
  args.x_blocks = blocks ? blocked.as<ActivationBlock>() : nullptr;
  for (int64_t first = 0; first < source.count; first += step) {
    args.first = first;
    args.rows = std::min(step, source.count - first);
    const auto pack_rows = [&](auto kernel, const Scratch& packed, int64_t stride, bool as_pairs) {
      const PackRowsArgs rows{source, first, packed.as<void>(), stride, as_pairs};
      parallel_for(args.rows, grain_of_product(0, static_cast<double>(args.x_stride) * 8),
                   [&](int64_t begin, int64_t end) { kernel(rows, begin, end); });
    };
    if (widens) pack_rows(table.pack_rows, widened, args.x_stride, false);
    if (pairs) pack_rows(table.pack_rows, paired, args.x_stride, true);
    if (blocks) pack_rows(table.quantise_rows, blocked, row_blocks, false);

    args.chunks = chunks_of(args.rows, slices);
    args.chunk_rows = ceil_div(args.rows, args.chunks);
    args.chunks = ceil_div(args.rows, args.chunk_rows);
    const double terms = static_cast<double>(depth + 16) * kSliceColumns;
    parallel_for(slices * args.chunks,
                 grain_of_product(terms * static_cast<double>(args.chunk_rows),
                                  terms * static_cast<double>(weight_size)),
                 [&](int64_t begin, int64_t end) {
                   const Scratch scratch(linear_scratch_bytes(args.chunk_rows, sum));
                   table.linear(args, scratch.as<void>(), begin, end);
                 });
  }
}

}  // namespace simdformer
