#include "core/linear.hpp"

#include <algorithm>
#include <vector>

#include "core/dispatch.hpp"
#include "core/linear_args.hpp"
#include "core/parallel.hpp"
#include "core/work.hpp"

namespace simdformer {
namespace {

// A matrix product: its multiplications, or the memory that they wait for.
double cost_of_product(double products, double bytes) {
  return std::max(products * cost::product, bytes * cost::byte);
}

// Items of a matrix product to a chunk.
int64_t grain_of_product(double products_per_item, double bytes_per_item) {
  return grain_of(cost_of_product(products_per_item, bytes_per_item));
}

}  // namespace

// ---- packed weights ---------------------------------------------------------------------------------------

PackedWeight::PackedWeight(const View& weight)
    : PackedWeight(weight.shape[0], weight.shape[1], weight.dtype) {
  fill(0, weight);
}

PackedWeight::PackedWeight(int64_t rows, int64_t cols, DType dtype)
    : rows_(rows), cols_(cols), dtype_(dtype) {
  if (rows_ == 0 || cols_ == 0) return;
  bytes_of(cols_ + 1, kPanelColumns, itemsize(dtype_));
  nbytes_ = bytes_of(ceil_div(rows_, kPanelColumns), panel_elements(cols_, dtype_) * itemsize(dtype_));
  memory_ = allocate_weight(nbytes_);
}

void PackedWeight::fill(int64_t first, const View& rows) {
  const int64_t count = rows.shape[0];
  if (count == 0 || cols_ == 0) return;
  const int64_t panel_bytes = panel_elements(cols_, dtype_) * itemsize(dtype_);
  char* const panels = memory_.get() + first / kPanelColumns * panel_bytes;
  const PackArgs args{rows.data, rows.strides[0], dtype_, count, cols_, panels};
  const KernelTable& table = kernels();
  parallel_for(ceil_div(count, kPanelColumns), grain_of_product(0, static_cast<double>(panel_bytes) * 4),
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

namespace {

// Inputs [begin, end) of column `column` of a panel, one behind the other. T: any type as wide as the
// elements.
template <class T>
void read_column(const char* panel, bool in_pairs, int64_t column, int64_t begin, int64_t end, void* out) {
  const T* const elements = reinterpret_cast<const T*>(panel);
  const int64_t depth = in_pairs ? 2 : 1;
  for (int64_t k = begin; k < end; ++k)
    static_cast<T*>(out)[k - begin] = elements[(k / depth * kPanelColumns + column) * depth + k % depth];
}

}  // namespace

void PackedWeight::gather(const int64_t* ids, const View& out) const {
  if (out.size() == 0) return;
  const KernelTable& table = kernels();
  const Rows target = rows_of(out);
  const int64_t size = itemsize(dtype_), panel_bytes = panel_elements(cols_, dtype_) * size;
  parallel_for(target.count, grain_of_rows(8 * cols_), [&](int64_t begin, int64_t end) {
    alignas(64) char values[kDepthBlock * sizeof(double)];
    RowCursor row(target, begin);
    ConvertArgs part;
    part.x.data = values;
    part.x.dtype = dtype_, part.out.dtype = out.dtype;
    part.x.count = part.out.count = 1;
    for (int64_t i = begin; i < end; ++i, row.next()) {
      const char* const panel = memory_.get() + ids[i] / kPanelColumns * panel_bytes;
      const int64_t column = ids[i] % kPanelColumns;
      for (int64_t k = 0; k < cols_; k += kDepthBlock) {
        const int64_t last = std::min(k + kDepthBlock, cols_);
        char* const to = row.get() + k * itemsize(out.dtype);
        void* const read = dtype_ == out.dtype ? to : values;
        if (size == 2)
          read_column<uint16_t>(panel, dtype_ == DType::bf16, column, k, last, read);
        else if (size == 4)
          read_column<uint32_t>(panel, false, column, k, last, read);
        else
          read_column<uint64_t>(panel, false, column, k, last, read);
        if (dtype_ == out.dtype) continue;
        part.x.length = part.out.length = part.segment = last - k;
        part.out.data = to;
        table.convert(part, 0, 1);
      }
    }
  });
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

// As it lies in memory, in whole slices.
double bytes_of_weight(const LinearWeight& w, int64_t depth) {
  const auto columns = static_cast<double>(ceil_div(w.columns, kSliceColumns) * kSliceColumns);
  if (w.format == nullptr) return columns * static_cast<double>(depth * itemsize(w.dtype));
  return columns / kSliceColumns * static_cast<double>(slice_bytes(*w.format, depth));
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
  int64_t slices = 0;
  double weight_bytes = 0;
  for (int i = 0; i < count; ++i) {
    weights.push_back(weight_of(operands[i], slices));
    slices += ceil_div(weights.back().columns, kSliceColumns);
    weight_bytes += bytes_of_weight(weights.back(), source.length);
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
    const double each = cost_of_product(terms * static_cast<double>(args.chunk_rows),
                                        weight_bytes / static_cast<double>(slices));
    parallel_for(slices * args.chunks, fine_grain_of(each, slices * args.chunks),
                 [&](int64_t begin, int64_t end) {
                   const Scratch scratch(linear_scratch_bytes(args.chunk_rows, sum));
                   table.linear(args, scratch.as<void>(), begin, end);
                 });
  }
}

}  // namespace simdformer
