#include "core/quantized.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/linear_args.hpp"
#include "core/dispatch.hpp"
#include "core/parallel.hpp"
#include "core/quantized_slices.hpp"
#include "core/work.hpp"

namespace simdformer {
namespace {

// A code as the integer that is multiplied.
int value_of(const QuantizedFormat& format, uint8_t code) {
  return (format.table != nullptr ? format.table[code] : code) - format.offset;
}

// Taking a row apart or putting it together costs a few operations an input.
int64_t grain_of_columns(int64_t inputs) { return grain_of(4 * cost::element * static_cast<double>(inputs)); }

}  // namespace

// ---- making -----------------------------------------------------------------------------------------------

int64_t QuantizedWeight::size_of(const QuantizedFormat& format, int64_t rows, int64_t cols) {
  if (rows == 0 || cols == 0) return 0;
  bytes_of(cols, int64_t{1024});  // no size on the way leaves 64 bits
  return bytes_of(ceil_div(rows, kSliceColumns), slice_bytes(format, cols));
}

void QuantizedWeight::allocate_slices() {
  nbytes_ = size_of(format_, rows_, cols_);
  if (nbytes_ == 0) return;
  memory_ = allocate_weight(nbytes_);
  const int64_t whole = rows_ / kSliceColumns * slice_bytes(format_, cols_);
  std::memset(memory_.get() + whole, 0, static_cast<size_t>(nbytes_ - whole));
}

// fill(row, first input, inputs, span) for every span of `count` rows from `first` on
template <class Fill>
void QuantizedWeight::fill_rows(int64_t first, int64_t count, Fill fill) {
  if (count == 0 || cols_ == 0) return;
  const int64_t slice = slice_bytes(format_, cols_);
  const auto fill_row = [&](int64_t row) {
    uint8_t* at = reinterpret_cast<uint8_t*>(memory_.get()) + row / kSliceColumns * slice;
    ColumnSpan span;
    for (int64_t k = 0; k < cols_; k += kSpanInputs) {
      const int64_t inputs = std::min(cols_ - k, kSpanInputs);
      fill(row, k, inputs, span);
      put_span(format_, span, inputs, row % kSliceColumns, at);
      at += span_bytes(format_, inputs);
    }
  };
  // 16 rows at a time: their words are a line of the cache.
  parallel_for(ceil_div(count, kPanelColumns), grain_of_columns(cols_ * kPanelColumns),
               [&](int64_t begin, int64_t end) {
                 const int64_t last = std::min(first + count, first + end * kPanelColumns);
                 for (int64_t row = first + begin * kPanelColumns; row < last; ++row) fill_row(row);
               });
}

QuantizedWeight::QuantizedWeight(const QuantizedType& type, int64_t rows, int64_t cols)
    : type_(&type), format_(type.format), rows_(rows), cols_(cols) {
  allocate_slices();
}

void QuantizedWeight::fill(const uint8_t* blocks, int64_t first, int64_t count) {
  const QuantizedType& type = *type_;
  const int64_t row_bytes = cols_ / type.block * type.nbytes;
  fill_rows(first, count, [&](int64_t row, int64_t k, int64_t inputs, ColumnSpan& span) {
    const uint8_t* block = blocks + (row - first) * row_bytes + k / type.block * type.nbytes;
    const int64_t end = k + inputs;
    for (int64_t at = k; at < end; at += type.block, block += type.nbytes) type.read(block, at - k, span);
  });
}

QuantizedWeight::QuantizedWeight(const Groups& groups, int64_t rows, int64_t cols)
    : format_{ScaleKind::f32, groups.minimums != nullptr, groups.group, groups.bits, 0, nullptr},
      rows_(rows),
      cols_(cols) {
  allocate_slices();
  const int64_t per_row = cols / groups.group;
  fill_rows(0, rows, [&](int64_t row, int64_t first, int64_t inputs, ColumnSpan& span) {
    const int64_t at = row * per_row + first / groups.group;
    const auto bytes = static_cast<size_t>(inputs / groups.group) * sizeof(float);
    std::memcpy(span.codes, groups.codes + row * cols + first, static_cast<size_t>(inputs));
    std::memcpy(span.scales, groups.scales + at, bytes);
    if (groups.minimums != nullptr) std::memcpy(span.minimums, groups.minimums + at, bytes);
  });
}

QuantizedWeight::QuantizedWeight(const QuantizedType& type, const View& weight)
    : type_(&type), format_(type.format), rows_(weight.shape[0]), cols_(weight.shape[1]) {
  allocate_slices();
  const int64_t panels = nbytes_ == 0 ? 0 : ceil_div(rows_, kPanelColumns);
  std::vector<QuantizingLoss> losses(static_cast<size_t>(panels));
  const PackArgs from{weight.data, weight.strides[0], weight.dtype, rows_, cols_, memory_.get()};
  const QuantizeWeightArgs args{from, &format_, losses.data()};
  const KernelTable& table = kernels();
  parallel_for(panels, grain_of_columns(cols_ * kPanelColumns),
               [&](int64_t begin, int64_t end) { table.quantize_weight(args, begin, end); });
  for (const QuantizingLoss& loss : losses) {
    loss_.missed += loss.missed;
    loss_.squares += loss.squares;
    loss_.largest = std::max(loss_.largest, loss.largest);
  }
}

// ---- reading ----------------------------------------------------------------------------------------------

// use(first input, inputs, where the span lies, span) for every span of a row
template <class Use>
void QuantizedWeight::for_each_span(int64_t row, Use use) const {
  const uint8_t* at = data() + row / kSliceColumns * slice_bytes(format_, cols_);
  ColumnSpan span;
  for (int64_t k = 0; k < cols_; k += kSpanInputs) {
    const int64_t inputs = std::min(cols_ - k, kSpanInputs);
    get_span(format_, at, inputs, row % kSliceColumns, span);
    use(k, inputs, at, static_cast<const ColumnSpan&>(span));
    at += span_bytes(format_, inputs);
  }
}

void QuantizedWeight::write_blocks(uint8_t* blocks) const {
  const int64_t row_bytes = cols_ / type_->block * type_->nbytes;
  parallel_for(rows_, grain_of_columns(cols_), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      uint8_t* block = blocks + row * row_bytes;
      for_each_span(row, [&](int64_t, int64_t inputs, const uint8_t*, const ColumnSpan& span) {
        for (int64_t k = 0; k < inputs; k += type_->block, block += type_->nbytes)
          type_->write(span, k, block);
      });
    }
  });
}

void QuantizedWeight::write_groups(uint8_t* codes, float* scales, float* minimums) const {
  const int64_t per_row = cols_ / format_.group,
                per_group = std::max<int64_t>(format_.group / kBlockInputs, 1);
  const KernelTable& table = kernels();
  parallel_for(rows_, grain_of_columns(cols_), [&](int64_t begin, int64_t end) {
    constexpr int64_t kFloats = kSpanInputs / 16 * kSliceColumns;
    alignas(64) float some_scales[kFloats], some_minimums[kFloats];
    for (int64_t row = begin; row < end; ++row)
      for_each_span(row, [&](int64_t first, int64_t inputs, const uint8_t* at, const ColumnSpan& span) {
        for (int64_t k = 0; k < inputs; ++k)
          codes[row * cols_ + first + k] = static_cast<uint8_t>(value_of(format_, span.codes[k]));
        const int64_t column = row % kPanelColumns, to = row * per_row + first / format_.group;
        table.quantized_scales(format_, at, inputs, row % kSliceColumns - column, some_scales, some_minimums);
        for (int64_t g = 0; g < inputs / format_.group; ++g) {
          scales[to + g] = some_scales[g * per_group * kSliceColumns + column];
          if (minimums != nullptr) minimums[to + g] = some_minimums[g * per_group * kSliceColumns + column];
        }
      });
  });
}

void QuantizedWeight::dequantize(const View& out) const { gather(nullptr, out); }

void QuantizedWeight::gather(const int64_t* ids, const View& out) const {
  if (out.size() == 0) return;
  const DequantizeArgs args{&format_, data(), cols_, ids, rows_of(out)};
  const KernelTable& table = kernels();
  const int64_t together = ids == nullptr ? kPanelColumns : 1;  // rows that lie side by side
  parallel_for(ceil_div(args.out.count, together), grain_of_columns(cols_ * together),
               [&](int64_t begin, int64_t end) {
                 table.dequantize(args, begin * together, std::min(end * together, args.out.count));
               });
}

}  // namespace simdformer
