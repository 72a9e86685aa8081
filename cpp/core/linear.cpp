#include "core/linear.hpp"

#include <algorithm>
#include <vector>

#include "base/gradient_args.hpp"
#include "base/linear_args.hpp"
#include "base/tuning.hpp"
#include "core/dispatch.hpp"
#include "core/parallel.hpp"
#include "core/prefetching.hpp"
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
    : rows_(rows), cols_(cols), nbytes_(size_of(rows, cols, dtype)), dtype_(dtype) {
  if (nbytes_ > 0) memory_ = allocate_weight(nbytes_);
}

PackedWeight::PackedWeight(int64_t rows, int64_t cols, DType dtype, char* memory)
    : rows_(rows),
      cols_(cols),
      nbytes_(size_of(rows, cols, dtype)),
      dtype_(dtype),
      memory_(memory, [](char*) {}) {}

int64_t PackedWeight::size_of(int64_t rows, int64_t cols, DType dtype) {
  if (rows == 0 || cols == 0) return 0;
  bytes_of(cols + 1, kPanelColumns, itemsize(dtype));
  return bytes_of(ceil_div(rows, kPanelColumns), panel_elements(cols, dtype) * itemsize(dtype));
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

// With the rows [begin, end) of the call.
LinearWeight weight_of(const LinearOperand& operand, int64_t begin, int64_t end) {
  LinearWeight w;
  w.begin = begin;
  w.end = end;
  w.packed = operand.weight == nullptr;
  w.format = nullptr;
  w.row_stride = 0;
  w.sum_terms = operand.sum_terms;
  if (operand.quantized != nullptr) {
    w.weight = reinterpret_cast<const char*>(operand.quantized->data());
    w.format = &operand.quantized->format();
    w.dtype = DType::f32;
    w.columns = operand.quantized->rows();
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
  return w;
}

// As it lies in memory, in whole slices.
double bytes_of_weight(const LinearWeight& w, int64_t depth) {
  const auto columns = static_cast<double>(ceil_div(w.columns, kSliceColumns) * kSliceColumns);
  if (w.format == nullptr) return columns * static_cast<double>(depth * itemsize(w.dtype));
  return columns / kSliceColumns * static_cast<double>(slice_bytes(*w.format, depth));
}

// Rows that are taken at a time: within an item's where all of them go through the same weights.
int64_t block_rows(int64_t rows, int64_t depth, bool are_chosen) {
  int64_t most = std::max(kBlockElements / std::max<int64_t>(depth, 1), kFewestBlockRows);
  if (!are_chosen) most = std::min(most, kItemRows);
  return ceil_div(rows, ceil_div(rows, most));
}

// The rows of a work item, up to `most`, where weights have at most `rows` each: fewer when there are too few slices to
// share out.
int64_t chunk_rows_of(int64_t rows, int64_t slices, int64_t most) {
  const int64_t chunks =
      std::clamp<int64_t>(ceil_div(kLinearItems, slices), 1, std::max<int64_t>(rows / kFewestItemRows, 1));
  return ceil_div(rows, std::max(chunks, ceil_div(rows, most)));
}

// Cuts what weights [args.weights, args.weights + args.count) make of rows [first, end) of the call into work
// items, which it counts: of up to `panel_rows` rows where a weight's panels are multiplied as they lie. `cost` becomes
// what one of them costs in the mean.
int64_t deal(LinearArgs& args, LinearWeight* weights, int64_t first, int64_t end, int64_t panel_rows,
             double& cost) {
  int64_t slices = 0, most = 0, most_together = kItemRows;
  double products = 0, bytes = 0;
  for (LinearWeight* w = weights; w < weights + args.count; ++w) {
    const int64_t begin = std::max(w->begin, first);
    w->row = begin - first;
    w->rows = std::min(w->end, end) - begin;
    const int64_t own = ceil_div(w->columns, kSliceColumns);
    slices += own;
    if (w->packed && w->format == nullptr && itemsize(w->dtype) >= 4) most_together = panel_rows;
    most = std::max(most, w->rows);
    products += static_cast<double>(args.depth + 16) * static_cast<double>(own * kSliceColumns * w->rows);
    bytes += bytes_of_weight(*w, args.depth);
  }
  args.chunk_rows = chunk_rows_of(most, slices, most_together);
  int64_t items = 0;
  for (LinearWeight* w = weights; w < weights + args.count; ++w) {
    w->first_item = items;
    w->chunks = ceil_div(w->rows, args.chunk_rows);
    items += ceil_div(w->columns, kSliceColumns) * w->chunks;
  }
  const auto each = static_cast<double>(items);
  cost = cost_of_product(products / each, bytes / static_cast<double>(slices));
  return items;
}

// All weights of a call: each has all rows of x, or those of the chosen ones that are its own. `columns`: x is its
// transpose, and has no memory.
void multiply(const Rows& x, const LinearOperand* operands, int count, const ChosenRows* chosen,
              Arithmetic arithmetic, const View* columns = nullptr) {
  std::vector<LinearWeight> weights;
  weights.reserve(static_cast<std::size_t>(count));
  for (const LinearOperand* one = operands; one < operands + count; ++one)
    if (one->out.size() > 0)
      weights.push_back(chosen != nullptr ? weight_of(*one, one->begin, one->end)
                                          : weight_of(*one, 0, x.count));
  if (weights.empty()) return;

  const DType sum = accumulator(x.dtype);
  const int64_t depth = x.length, all_rows = chosen != nullptr ? chosen->count : x.count;
  const KernelTable& table = kernels();
  LinearArgs args;
  args.x_stride = pitch_of(depth);
  args.depth = depth;

  // x is wanted widened, as pairs of bfloat16 or as integers, or, when the weights differ, in several forms.
  bool widens = false, pairs = false, blocks = false;
  double bytes = 0;  // of the weights
  for (const LinearWeight& w : weights) {
    bytes += bytes_of_weight(w, depth);
    if (w.format != nullptr && arithmetic == Arithmetic::int16)
      blocks = true;
    else if (table.bf16_pairs && x.dtype == DType::bf16 && w.packed && w.dtype == DType::bf16)
      pairs = true;
    else
      widens = true;
  }
  Prefetching prefetching(table, bytes);
  args.goal = Cache::first;
  for (LinearWeight& w : weights) {
    const int64_t rows = w.end - w.begin;
    if (w.format != nullptr && blocks)
      w.ahead = prefetching.slice_ahead(*w.format, rows);
    else if (w.format == nullptr && rows <= (w.packed ? kFewRows : kDirectRows))
      args.goal = prefetching.goal(w.packed ? Prefetched::panels : Prefetched::weight_rows, w.dtype);
  }
  const int64_t step = block_rows(all_rows, depth, chosen != nullptr);
  const int64_t elements = bytes_of(step, args.x_stride), row_blocks = depth / kBlockInputs;
  const Scratch widened(widens ? bytes_of(elements, itemsize(sum)) : 0);
  const Scratch paired(pairs ? bytes_of(elements, itemsize(DType::bf16)) : 0);
  const Scratch blocked(blocks ? bytes_of(step, row_blocks, int64_t{sizeof(ActivationBlock)}) : 0);
  args.x = widened.as<void>();
  args.x_pairs = pairs ? paired.as<bfloat16>() : nullptr;
  args.x_blocks = blocks ? blocked.as<ActivationBlock>() : nullptr;
  Reading reading;  // of weights that lie as they do for good
  if (chosen == nullptr)
    for (const LinearWeight& w : weights)
      if (w.packed) reading.add(w.weight, static_cast<int64_t>(bytes_of_weight(w, depth)));
  LinearWeight *own = weights.data(), *const last = own + weights.size();
  for (int64_t first = 0; first < all_rows; first += step) {
    const int64_t end = std::min(first + step, all_rows);
    const auto pack_rows = [&](auto kernel, const Scratch& packed, int64_t row_bytes, int64_t stride,
                               bool as_pairs) {
      const PackRowsArgs rows{x, first, packed.as<void>(), stride, as_pairs};
      const auto pack = [&](int64_t begin, int64_t stop) {
        if (chosen == nullptr) return kernel(rows, begin, stop);
        PackRowsArgs row = rows;
        for (int64_t i = begin; i < stop; ++i) {
          row.first = chosen->rows[first + i] / chosen->share;
          row.out = packed.as<char>() + i * row_bytes;
          kernel(row, 0, 1);
        }
      };
      parallel_for(end - first, grain_of_product(0, static_cast<double>(args.x_stride) * 8), pack);
    };
    if (columns != nullptr) {
      const TransposeArgs turned{
          columns->data + first * itemsize(x.dtype), columns->strides[0], x.dtype, depth, end - first,
          (pairs ? paired : widened).as<void>(),     args.x_stride,       pairs};
      parallel_for(ceil_div(turned.rows, kTransposedRows), grain_of_rows(depth * kTransposedRows),
                   [&](int64_t begin, int64_t stop) { table.transpose(turned, begin, stop); });
    } else {
      if (widens) pack_rows(table.pack_rows, widened, args.x_stride * itemsize(sum), args.x_stride, false);
      if (pairs)
        pack_rows(table.pack_rows, paired, args.x_stride * itemsize(DType::bf16), args.x_stride, true);
      if (blocks)
        pack_rows(table.quantize_rows, blocked, row_blocks * int64_t{sizeof(ActivationBlock)}, row_blocks,
                  false);
    }

    while (own->end <= first) ++own;
    const LinearWeight* behind = own;
    while (behind < last && behind->begin < end) ++behind;
    args.first = first;
    args.places = chosen != nullptr ? chosen->rows + first : nullptr;
    args.weights = own;
    args.count = static_cast<int>(behind - own);
    double cost = 0;
    const int64_t items = deal(args, own, first, end, table.panel_rows, cost);
    parallel_for(
        items, fine_grain_of(cost, items),
        [&](int64_t begin, int64_t stop) {
          const Scratch scratch(linear_scratch_bytes(args.chunk_rows, sum));
          table.linear(args, scratch.as<void>(), begin, stop);
        },
        first == 0 ? &reading : nullptr);
  }
}

}  // namespace

void linear(const View& x, const LinearOperand* operands, int count, Arithmetic arithmetic) {
  multiply(rows_of(x), operands, count, nullptr, arithmetic);
}

void linear_of_columns(const View& x, const LinearOperand& operand) {
  Rows rows;
  rows.dtype = x.dtype;
  rows.count = x.shape[1];
  rows.length = x.shape[0];
  multiply(rows, &operand, 1, nullptr, Arithmetic::float32, &x);
}

void expert_linear(const View& x, const LinearOperand* operands, int count, const ChosenRows& chosen,
                   Arithmetic arithmetic) {
  multiply(rows_of(x), operands, count, &chosen, arithmetic);
}

}  // namespace simdformer
