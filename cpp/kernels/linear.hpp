// linear: y = x W^T + b      x: (rows, depth)   W: (columns, depth)   b: (columns)   y: (rows, columns)
//
// A work item makes a slice of y, 64 columns, for a chunk of rows in three steps: bring a block of W into a
// form that the microkernel eats, multiply into a tile of sums, add the bias and round once into y.
//
//   packed W              panels as they lie; 16-bit ones are decoded in registers, or, when many rows will
//                         use them, widened once into scratch; beside bfloat16 x, bfloat16 ones are
//                         multiplied as they are where the CPU can
//   quantized W           small integers and their scales, see quantized.hpp
//   plain W, many rows    panels are packed into scratch, 256 inputs at a time
//   plain W, few rows     no panels: dot products of rows of W with rows of x, see dot_products.hpp
//
// Sums are float32 (float64 for float64). Long sums are cut: partial sums of `sum_length(depth)` terms start
// from zero and are added up in order. That depends on depth alone, so with packed weights a row of x gives
// the same bits alone and among a thousand others. The dot products of plain weights sum lane by lane: their
// bits are the same for up to kDirectRows rows, and differ from the panels' beyond that.
#pragma once

#include "base/bounds.hpp"
#include "base/linear_args.hpp"
#include "base/tuning.hpp"
#include "kernels/dot_products.hpp"
#include "kernels/gemm.hpp"
#include "kernels/loops.hpp"
#include "kernels/pack.hpp"
#include "kernels/quantized.hpp"

namespace simdformer::SF_ISA {

// Error grows with the square root of the terms in a chain. These lengths keep it below that of a dot product
// on vectors at every depth (measured against float64), and cost the microkernel 1 % at 128 terms.
SF_INLINE int64_t sum_length(int64_t depth) {
  return depth < 64 ? 16 : depth < 256 ? 32 : depth < 512 ? 64 : 128;
}

// The rows of x and the columns of a weight that a work item multiplies.
struct LinearItem {
  const LinearArgs& args;
  const LinearWeight& w;
  int64_t row, rows, column, columns;

  // The rows of the whole call choose the algorithm, so that all blocks use the same.
  SF_INLINE int64_t all_rows() const { return w.end - w.begin; }

  template <class T>
  SF_INLINE Matrix<T> x(const void* all) const {
    return Matrix<T>{static_cast<const T*>(all), args.x_stride}.from(row);
  }

  // When packed: the panels that hold the column `first` of the item and those after it.
  template <class Element>
  SF_INLINE Panels<Element> panels(int64_t first = 0) const {
    const Panels<Element> all{reinterpret_cast<const Element*>(w.weight), panel_elements(args.depth, w.dtype),
                              args.goal};
    return all.from(column + first, 0);
  }

  // When plain: row `first` of the item.
  SF_INLINE const char* weight_row(int64_t first) const { return w.weight + (column + first) * w.row_stride; }
};

// ---- products of panels -----------------------------------------------------------------------------------

// tile = or += x panels for k inputs, in partial sums of `length` terms. No terms make 0. `beside` is called
// with every tile of registers.
template <class T, class Beside>
SF_INLINE void multiply_block(const LinearItem& item, int64_t k, Matrix<RowOf<T>> x,
                              Panels<ElementOf<T>> panels, SumOf<T>* tile, bool accumulate, Beside beside) {
  const int64_t length = item.w.sum_terms > 0 ? item.w.sum_terms : sum_length(item.args.depth);
  int64_t begin = 0;
  do {
    gemm<T>(item.rows, item.columns, min_of(k - begin, length), x.from(0, begin), panels.from(0, begin),
            {tile, kSliceColumns, accumulate || begin > 0}, beside);
    begin += length;
  } while (begin < k);
}

// Packed panels, as they lie.
template <class T>
SF_INLINE void multiply_packed(const LinearItem& item, const void* x, SumOf<T>* tile) {
  multiply_block<T>(item, item.args.depth, item.x<RowOf<T>>(x), item.panels<ElementOf<T>>(), tile, false,
                    Nothing());
}

// k inputs of a packed 16-bit panel -> [k][16] of float
template <class T>
SF_INLINE void widen_panel(const T* panel, int64_t k, float* out) {
  using Panel = PanelOf<T>;
  constexpr int64_t W = kLanes<float>;
  for (int64_t j = 0; j < k; j += Panel::kDepth, panel += kPanelColumns * Panel::kDepth)
    for (int64_t c = 0; c < kPanelColumns; c += W) {
      store(out + j * kPanelColumns + c, Panel::template column<0>(panel + c * Panel::kDepth));
      if constexpr (Panel::kDepth == 2) {
        if (j + 1 < k) store(out + (j + 1) * kPanelColumns + c, Panel::template column<1>(panel + c * 2));
      }
    }
}

// The block of a weight that is packed or widened next, prefetched to the second cache with every tile of registers,
// a column's worth at a time: packing would wait for memory.
struct PrefetchBlock {
  const char* data;
  int64_t columns, bytes;         // of a column in the block
  int64_t stride, inner, within;  // bytes from every inner-th column to the next such, and between those
  int64_t column = 0;

  SF_INLINE void operator()() {
    if (column == columns) return;
    const char* const run = data + column / inner * stride + column % inner * within;
    for (int64_t byte = 0; byte < bytes; byte += kLineBytes) __builtin_prefetch(run + byte, 0, 2);
    ++column;
  }
};

// The block of columns from `column` of the item and inputs from `input` on. A column's worth of packed panels is
// the sixteenth part of one.
template <class T>
SF_INLINE PrefetchBlock prefetch_block(const LinearItem& item, int64_t column, int64_t input) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(T)), kBytes = kDepthBlock * kSize;
  if (!item.w.packed)
    return {item.weight_row(column) + input * kSize, item.columns, kBytes, item.w.row_stride, 1, 0};
  const Panels<T> panels = item.panels<T>(column).from(0, input);
  return {reinterpret_cast<const char*>(panels.p),
          item.columns,
          kBytes,
          panels.stride * kSize,
          kPanelColumns,
          kBytes};
}

// Panels are made in `scratch`, kDepthBlock inputs at a time.
template <class T>
SF_INLINE void multiply_by_blocks(const LinearItem& item, Acc<T>* tile, Acc<T>* scratch) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  const LinearArgs& args = item.args;
  const LinearWeight& w = item.w;
  int64_t begin = 0;
  do {
    const int64_t k = min_of(args.depth - begin, kDepthBlock);
    for (int64_t c = 0; c < item.columns; c += kPanelColumns) {
      Acc<T>* panel = scratch + c * kDepthBlock;
      if (!w.packed)
        pack_panel<T>(item.weight_row(c) + begin * kSize, w.row_stride,
                      min_of(item.columns - c, kPanelColumns), k, panel);
      else if constexpr (sizeof(T) == 2)
        widen_panel(item.panels<T>(c).from(0, begin).p, k, panel);
    }
    const bool last = begin + k == args.depth;  // of the slice: the next one begins
    multiply_block<Acc<T>>(item, k, item.x<Acc<T>>(args.x).from(0, begin),
                           {scratch, kDepthBlock * kPanelColumns}, tile, begin > 0,
                           prefetch_block<T>(item, last ? item.columns : 0, last ? 0 : begin + k));
    begin += kDepthBlock;
  } while (begin < args.depth);
}

// A quantized weight: by x as integers, or by x as float32 and the very values that the weight holds.
inline void multiply_few_bits(const LinearItem& item, float* tile, float* scratch) noexcept {
  const LinearArgs& args = item.args;
  const QuantizedFormat& format = *item.w.format;
  const uint8_t* slice = reinterpret_cast<const uint8_t*>(item.w.weight) +
                         item.column / kSliceColumns * slice_bytes(format, args.depth);
  if (args.x_blocks != nullptr) {
    const ActivationBlock* x = args.x_blocks + item.row * (args.depth / kBlockInputs);
    return multiply_quantized(format, slice, args.depth, x, item.rows, item.w.ahead, tile,
                              reinterpret_cast<uint8_t*>(scratch));
  }
  static_assert(kDepthBlock == kSpanInputs && kDepthBlock * kSliceColumns * 4 >= kWidenedBytes);
  int64_t begin = 0;
  do {
    const int64_t k = min_of(args.depth - begin, kDepthBlock);
    for (int64_t c = 0; c < item.columns; c += kPanelColumns)
      dequantize_span(format, slice, k, {c, kPanelColumns}, scratch + c * kDepthBlock);
    multiply_block<float>(item, k, item.x<float>(args.x).from(0, begin),
                          {scratch, kDepthBlock * kPanelColumns}, tile, begin > 0, Nothing());
    slice += span_bytes(format, k);
    begin += kDepthBlock;
  } while (begin < args.depth);
}

// tile = x W^T
template <class T>
void multiply(const LinearItem& item, Acc<T>* tile, Acc<T>* scratch) noexcept {
  const LinearArgs& args = item.args;
  if constexpr (kBf16Pairs && std::is_same_v<T, bfloat16>) {
    if (item.w.packed && args.x_pairs != nullptr) return multiply_packed<Pairs>(item, args.x_pairs, tile);
  }
  if constexpr (std::is_same_v<T, float>) {
    if (item.w.format != nullptr) return multiply_few_bits(item, tile, scratch);
  }
  static_assert(kDirectRows <= kSliceColumns);
  if (!item.w.packed && item.all_rows() <= kDirectRows)
    return dot_products<T>(item.rows, item.columns, args.depth, item.x<Acc<T>>(args.x),
                           {item.weight_row(0), item.w.row_stride, args.goal}, tile, scratch);
  if (item.w.packed && (sizeof(T) == sizeof(Acc<T>) || item.all_rows() < kWidenRows))
    return multiply_packed<T>(item, args.x, tile);
  multiply_by_blocks<T>(item, tile, scratch);
}

// ---- bias and rounding ------------------------------------------------------------------------------------

template <class T>
SF_INLINE void widen_bias(const LinearItem& item, Acc<T>* out) {
  const char* bias = item.w.bias + item.column * item.w.bias_stride;
  for (int64_t n = 0; n < item.columns; ++n) out[n] = element<T>(bias + n * item.w.bias_stride);
}

// y = tile + bias, one rounding
template <class Out>
SF_INLINE void round_tile(const LinearItem& item, const Acc<Out>* tile, const Acc<Out>* bias) {
  const int64_t* const places = item.args.places;
  RowCursor y(item.w.out, places != nullptr ? places[item.row] : item.args.first + item.row);
  for (int64_t i = 0; i < item.rows; ++i, y.next(), tile += kSliceColumns) {
    if (places != nullptr && i > 0) y = RowCursor(item.w.out, places[item.row + i]);
    Out* out = y.template as<Out>() + item.column;
    if (bias == nullptr)
      map_row(out, item.columns, [](auto sum) { return sum; }, tile);
    else
      map_row(out, item.columns, [](auto sum, auto b) { return sum + b; }, tile, bias);
  }
}

// ---- the entry of the table -------------------------------------------------------------------------------

// In sums of type A
template <class A>
void linear_item(const LinearItem& item, A* scratch) noexcept {
  A *bias = scratch, *panels = bias + kSliceColumns, *tile = panels + kSliceColumns * kDepthBlock;
  const LinearWeight& w = item.w;
  with_storage_of<A>(w.dtype, [&](auto type) { multiply<decltype(type)>(item, tile, panels); });
  if (w.bias != nullptr)
    with_storage_of<A>(w.bias_dtype, [&](auto type) { widen_bias<decltype(type)>(item, bias); });
  with_storage_of<A>(w.out.dtype, [&](auto type) {
    round_tile<decltype(type)>(item, tile, w.bias != nullptr ? bias : nullptr);
  });
}

inline void linear(const LinearArgs& args, void* scratch, int64_t begin, int64_t end) noexcept {
  const LinearWeight *w = args.weights, *const last = args.weights + args.count - 1;
  for (int64_t i = begin; i < end; ++i) {
    while (w < last && w[1].first_item <= i) ++w;
    const int64_t of_weight = i - w->first_item, row = of_weight % w->chunks * args.chunk_rows;
    const int64_t column = of_weight / w->chunks * kSliceColumns;
    const LinearItem item{args,         *w,
                          w->row + row, min_of(w->rows - row, args.chunk_rows),
                          column,       min_of(w->columns - column, kSliceColumns)};
    if (w->out.dtype == DType::f64)
      linear_item(item, static_cast<double*>(scratch));
    else
      linear_item(item, static_cast<float*>(scratch));
  }
}

}  // namespace simdformer::SF_ISA
