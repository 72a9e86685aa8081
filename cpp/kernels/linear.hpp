// linear: y = x W^T + b      x: (rows, depth)   W: (columns, depth)   b: (columns)   y: (rows, columns)
//
// A work item makes 64 columns of y for a chunk of rows in three steps: bring a block of W into a form that
// the microkernel eats, multiply into a tile of sums, add the bias and round once into y.
//
//   packed W              panels as they lie; 16-bit ones are decoded in registers, or, when many rows will
//                         use them, widened once into scratch; beside bfloat16 x, bfloat16 ones are
//                         multiplied as they are where the CPU can
//   plain W, many rows    panels are packed into scratch, 256 inputs at a time
//   plain W, few rows     no panels: dot products of rows of W with rows of x, bound by memory
//
// Sums are float32 (float64 for float64). Long sums are cut: partial sums of `sum_length(depth)` terms start
// from zero and are added up in order. That depends on depth alone, so with packed weights a row of x gives
// the same bits alone and among a thousand others. The dot products of plain weights sum lane by lane: their
// bits are the same for up to kDirectRows rows, and differ from the panels' beyond that.
#pragma once

#include "core/linear_args.hpp"
#include "kernels/gemm.hpp"

namespace simdformer::SF_ISA {

static_assert(kPanel == kPanelColumns);

// Error grows with the square root of the terms in a chain. These lengths keep it below that of a dot product
// on vectors at every depth (measured against float64), and cost the microkernel 1 % at 128 terms.
SF_INLINE int64_t sum_length(int64_t depth) {
  return depth < 64 ? 16 : depth < 256 ? 32 : depth < 512 ? 64 : 128;
}

// ---- packing ----------------------------------------------------------------------------------------------

template <class T>
void pack_panels(const PackArgs& args, int64_t begin, int64_t end) noexcept {
  for (int64_t p = begin; p < end; ++p) {
    const char* rows = args.weight + p * kPanel * args.row_stride;
    T* panel = reinterpret_cast<T*>(args.panels) + p * panel_elements(args.depth, args.dtype);
    const int64_t columns = args.columns - p * kPanel < kPanel ? args.columns - p * kPanel : kPanel;
    if constexpr (sizeof(T) == 2)
      pack_panel_16(rows, args.row_stride, columns, args.depth, panel);
    else
      pack_panel<T>(rows, args.row_stride, columns, args.depth, panel);
  }
}

inline void pack(const PackArgs& args, int64_t begin, int64_t end) noexcept {
  switch (args.dtype) {
    case DType::f32:
      return pack_panels<float>(args, begin, end);
    case DType::f64:
      return pack_panels<double>(args, begin, end);
    case DType::f16:
      return pack_panels<float16>(args, begin, end);
    default:
      return pack_panels<bfloat16>(args, begin, end);
  }
}

// The way back is no hot path: a plain loop over blocks that stay in cache.
template <class T>
SF_INLINE void unpack_panels(const UnpackArgs& args, int64_t begin, int64_t end) {
  constexpr int64_t kDepth = std::is_same_v<T, bfloat16> ? 2 : 1, kBlock = 64;
  for (int64_t p = begin; p < end; ++p) {
    const T* panel = reinterpret_cast<const T*>(args.panels) + p * panel_elements(args.depth, args.dtype);
    const int64_t columns = args.columns - p * kPanel < kPanel ? args.columns - p * kPanel : kPanel;
    for (int64_t block = 0; block < args.depth; block += kBlock) {
      const int64_t last = args.depth - block < kBlock ? args.depth : block + kBlock;
      for (int64_t c = 0; c < columns; ++c) {
        char* row = args.weight + (p * kPanel + c) * args.row_stride;
        for (int64_t k = block; k < last; ++k)
          std::memcpy(row + k * static_cast<int64_t>(sizeof(T)),
                      panel + (k / kDepth * kPanel + c) * kDepth + k % kDepth, sizeof(T));
      }
    }
  }
}

inline void unpack(const UnpackArgs& args, int64_t begin, int64_t end) noexcept {
  switch (args.dtype) {
    case DType::f32:
      return unpack_panels<float>(args, begin, end);
    case DType::f64:
      return unpack_panels<double>(args, begin, end);
    case DType::f16:
      return unpack_panels<float16>(args, begin, end);
    default:
      return unpack_panels<bfloat16>(args, begin, end);
  }
}

template <class T>
SF_INLINE void pack_rows_of(const PackRowsArgs& args, int64_t begin, int64_t end) {
  using A = Acc<T>;
  RowCursor row(args.x, args.first + begin);
  for (int64_t i = begin; i < end; ++i, row.next()) {
    A* out = static_cast<A*>(args.out) + i * args.stride;
    map_row(out, args.x.length, [](auto x) { return x; }, row.template as<const T>());
    for (int64_t k = args.x.length; k < args.stride; ++k) out[k] = A(0);
  }
}

SF_INLINE void copy_rows(const PackRowsArgs& args, int64_t begin, int64_t end) {
  RowCursor row(args.x, args.first + begin);
  for (int64_t i = begin; i < end; ++i, row.next()) {
    bfloat16* out = static_cast<bfloat16*>(args.out) + i * args.stride;
    std::memcpy(out, row.template as<const bfloat16>(), static_cast<size_t>(args.x.length) * 2);
    std::memset(out + args.x.length, 0, static_cast<size_t>(args.stride - args.x.length) * 2);
  }
}

inline void pack_rows(const PackRowsArgs& args, int64_t begin, int64_t end) noexcept {
  if (args.pairs) return copy_rows(args, begin, end);
  switch (args.x.dtype) {
    case DType::f32:
      return pack_rows_of<float>(args, begin, end);
    case DType::f64:
      return pack_rows_of<double>(args, begin, end);
    case DType::f16:
      return pack_rows_of<float16>(args, begin, end);
    default:
      return pack_rows_of<bfloat16>(args, begin, end);
  }
}

// k inputs of a packed 16-bit panel -> [k][16] of float.
template <class T>
SF_INLINE void widen_panel(const T* panel, int64_t k, float* out) {
  using Panel = PanelOf<T>;
  constexpr int64_t W = kLanes<float>;
  for (int64_t j = 0; j < k; j += Panel::kDepth, panel += kPanel * Panel::kDepth)
    for (int64_t c = 0; c < kPanel; c += W) {
      store(out + j * kPanel + c, Panel::template column<0>(panel + c * Panel::kDepth));
      if constexpr (Panel::kDepth == 2) {
        if (j + 1 < k) store(out + (j + 1) * kPanel + c, Panel::template column<1>(panel + c * 2));
      }
    }
}

// ---- dot products -----------------------------------------------------------------------------------------

// MR rows of x against NR rows of W: tile[i][n] = sum_k x[i][k] W[n][k]. Lanes are summed apart for kSteps
// steps, then added to their totals, which meet in the end. x is padded with zeros to whole vectors.
template <class T, int MR, int NR>
__attribute__((noinline)) void dot_tile(const Acc<T>* x, int64_t x_stride, const char* weight,
                                        int64_t row_stride, int64_t depth, Acc<T>* tile) noexcept {
  using V = Vec<Acc<T>>;
  constexpr int64_t W = kLanes<Acc<T>>, kSteps = 64;
  V total[MR][NR], sum[MR][NR];
  SF_UNROLL for (int i = 0; i < MR; ++i) SF_UNROLL for (int n = 0; n < NR; ++n) total[i][n] = V(Acc<T>(0));
  const T* rows[NR];
  SF_UNROLL for (int n = 0; n < NR; ++n) rows[n] = reinterpret_cast<const T*>(weight + n * row_stride);

  const auto step = [&](int64_t k, auto load_weight) __attribute__((always_inline)) {
    V w[NR];
    SF_UNROLL for (int n = 0; n < NR; ++n) w[n] = load_weight(rows[n] + k);
    SF_UNROLL for (int i = 0; i < MR; ++i) {
      const V lanes = load(x + i * x_stride + k);
      SF_UNROLL for (int n = 0; n < NR; ++n) sum[i][n] = mul_add(lanes, w[n], sum[i][n]);
    }
  };
  const int64_t whole = depth - depth % W;
  for (int64_t block = 0; block < depth; block += kSteps * W) {
    SF_UNROLL for (int i = 0; i < MR; ++i) SF_UNROLL for (int n = 0; n < NR; ++n) sum[i][n] = V(Acc<T>(0));
    const int64_t last = block + kSteps * W < whole ? block + kSteps * W : whole;
    for (int64_t k = block; k < last; k += W) step(k, [](const T* p) { return load(p); });
    if (last == whole && whole < depth && depth - block <= kSteps * W)
      step(whole, [&](const T* p) { return load_part(p, depth - whole); });
    SF_UNROLL for (int i = 0; i < MR; ++i) SF_UNROLL for (int n = 0; n < NR; ++n) total[i][n] =
        total[i][n] + sum[i][n];
  }
  SF_UNROLL for (int i = 0; i < MR; ++i) SF_UNROLL for (int n = 0; n < NR; ++n) tile[i * kGroup + n] =
      sum_lanes(total[i][n]);
}

// kDotRows by 4 sums in registers: 4 rows of W, so that their loads overlap.
constexpr int kDotColumns = 4;

template <class T, int NR, int MR = kDotRows>
SF_INLINE void dot_rows(int64_t rows, const Acc<T>* x, int64_t x_stride, const char* weight,
                        int64_t row_stride, int64_t depth, Acc<T>* tile) {
  for (; rows >= MR; rows -= MR, x += MR * x_stride, tile += MR * kGroup)
    dot_tile<T, MR, NR>(x, x_stride, weight, row_stride, depth, tile);
  if constexpr (MR > 1) dot_rows<T, NR, MR - 1>(rows, x, x_stride, weight, row_stride, depth, tile);
}

template <class T>
SF_INLINE void dot_products(int64_t rows, int64_t columns, const Acc<T>* x, int64_t x_stride,
                            const char* weight, int64_t row_stride, int64_t depth, Acc<T>* tile) {
  int64_t n = 0;
  for (; n + kDotColumns <= columns; n += kDotColumns)
    dot_rows<T, kDotColumns>(rows, x, x_stride, weight + n * row_stride, row_stride, depth, tile + n);
  for (; n < columns; ++n)
    dot_rows<T, 1>(rows, x, x_stride, weight + n * row_stride, row_stride, depth, tile + n);
}

// ---- the product ------------------------------------------------------------------------------------------

// tile = or += x panels, in partial sums of `length` terms. No terms make 0.
template <class T>
SF_INLINE void multiply_block(int64_t rows, int64_t columns, int64_t k, int64_t length, const RowOf<T>* x,
                              int64_t x_stride, const ElementOf<T>* panels, int64_t panel_stride,
                              SumOf<T>* tile, bool accumulate) {
  int64_t begin = 0;
  do {
    gemm_panels<T>(rows, columns, k - begin < length ? k - begin : length, x + begin, x_stride,
                   panels + begin * kPanel, panel_stride, tile, kGroup, accumulate || begin > 0);
    begin += length;
  } while (begin < k);
}

// Where the panels of a packed weight start that hold `column` and those after it.
template <class Element>
SF_INLINE const Element* panels_of(const LinearArgs& args, const LinearWeight& w, int64_t column) {
  return reinterpret_cast<const Element*>(w.weight) + column / kPanel * panel_elements(args.depth, w.dtype);
}

// tile = x W^T for `rows` rows of x and the columns [column, column + columns) of W, a group or what is left
// of it; W is packed and its panels are multiplied as they lie.
template <class T>
SF_INLINE void multiply_packed(const LinearArgs& args, const LinearWeight& w, const RowOf<T>* x, int64_t rows,
                               int64_t column, int64_t columns, SumOf<T>* tile) {
  multiply_block<T>(rows, columns, args.depth, sum_length(args.depth), x, args.x_stride,
                    panels_of<ElementOf<T>>(args, w, column), panel_elements(args.depth, w.dtype), tile,
                    false);
}

// The same for every W.
template <class T>
void multiply(const LinearArgs& args, const LinearWeight& w, const Acc<T>* x, int64_t rows, int64_t column,
              int64_t columns, Acc<T>* tile, Acc<T>* scratch) noexcept {
  using A = Acc<T>;
  const char* weight_rows = w.weight + column * w.row_stride;  // when plain
  if (!w.packed && args.all_rows <= kDirectRows)
    return dot_products<T>(rows, columns, x, args.x_stride, weight_rows, w.row_stride, args.depth, tile);
  if (w.packed && (sizeof(T) == sizeof(A) || args.all_rows < kWidenRows))
    return multiply_packed<T>(args, w, x, rows, column, columns, tile);

  int64_t begin = 0;
  do {
    const int64_t k = args.depth - begin < kDepthBlock ? args.depth - begin : kDepthBlock;
    for (int64_t c = 0; c < columns; c += kPanel) {
      A* panel = scratch + c * kDepthBlock;
      if (!w.packed)
        pack_panel<T>(weight_rows + c * w.row_stride + begin * static_cast<int64_t>(sizeof(T)), w.row_stride,
                      columns - c < kPanel ? columns - c : kPanel, k, panel);
      else if constexpr (sizeof(T) == 2)
        widen_panel(panels_of<T>(args, w, column + c) + begin * kPanel, k, panel);
    }
    multiply_block<A>(rows, columns, k, sum_length(args.depth), x + begin, args.x_stride, scratch,
                      kDepthBlock * kPanel, tile, begin > 0);
    begin += kDepthBlock;
  } while (begin < args.depth);
}

// ---- bias and rounding ------------------------------------------------------------------------------------

template <class T, class A>
SF_INLINE void widen_bias(const char* bias, int64_t stride, int64_t columns, A* out) {
  for (int64_t n = 0; n < columns; ++n) {
    T value;
    std::memcpy(&value, bias + n * stride, sizeof(T));
    out[n] = static_cast<A>(widen(value));
  }
}

// y = tile + bias, one rounding
template <class Out>
SF_INLINE void finish(const Rows& out, int64_t row, int64_t rows, int64_t column, int64_t columns,
                      const Acc<Out>* tile, const Acc<Out>* bias) {
  RowCursor y(out, row);
  for (int64_t i = 0; i < rows; ++i, y.next(), tile += kGroup) {
    Out* target = y.template as<Out>() + column;
    if (bias == nullptr)
      map_row(target, columns, [](auto sum) { return sum; }, tile);
    else
      map_row(target, columns, [](auto sum, auto b) { return sum + b; }, tile, bias);
  }
}

inline void linear_item(const LinearArgs& args, const LinearWeight& w, int64_t column, int64_t row,
                        int64_t rows, void* scratch) noexcept {
  const int64_t columns = w.columns - column < kGroup ? w.columns - column : kGroup;
  if (w.out.dtype == DType::f64) {
    double* bias = static_cast<double*>(scratch);
    double *panels = bias + kGroup, *tile = panels + kGroup * kDepthBlock;
    const double* x = static_cast<const double*>(args.x) + row * args.x_stride;
    multiply<double>(args, w, x, rows, column, columns, tile, panels);
    if (w.bias != nullptr) widen_bias<double>(w.bias + column * w.bias_stride, w.bias_stride, columns, bias);
    return finish<double>(w.out, args.first + row, rows, column, columns, tile, w.bias ? bias : nullptr);
  }
  float* bias = static_cast<float*>(scratch);
  float *panels = bias + kGroup, *tile = panels + kGroup * kDepthBlock;
  const float* x = static_cast<const float*>(args.x) + row * args.x_stride;
  switch (w.dtype) {
    case DType::f32:
      multiply<float>(args, w, x, rows, column, columns, tile, panels);
      break;
    case DType::f16:
      multiply<float16>(args, w, x, rows, column, columns, tile, panels);
      break;
    default:
      if constexpr (kBf16Pairs) {
        if (w.packed && args.x_pairs != nullptr) {
          multiply_packed<Pairs>(args, w, args.x_pairs + row * args.x_stride, rows, column, columns, tile);
          break;
        }
      }
      multiply<bfloat16>(args, w, x, rows, column, columns, tile, panels);
  }
  if (w.bias != nullptr) {
    const char* source = w.bias + column * w.bias_stride;
    switch (w.bias_dtype) {
      case DType::f32:
        widen_bias<float>(source, w.bias_stride, columns, bias);
        break;
      case DType::f16:
        widen_bias<float16>(source, w.bias_stride, columns, bias);
        break;
      default:
        widen_bias<bfloat16>(source, w.bias_stride, columns, bias);
    }
  }
  const float* added = w.bias != nullptr ? bias : nullptr;
  switch (w.out.dtype) {
    case DType::f32:
      return finish<float>(w.out, args.first + row, rows, column, columns, tile, added);
    case DType::f16:
      return finish<float16>(w.out, args.first + row, rows, column, columns, tile, added);
    default:
      return finish<bfloat16>(w.out, args.first + row, rows, column, columns, tile, added);
  }
}

inline void linear(const LinearArgs& args, void* scratch, int64_t begin, int64_t end) noexcept {
  for (int64_t item = begin; item < end; ++item) {
    const int64_t group = item / args.chunks, row = item % args.chunks * args.chunk_rows;
    const LinearWeight* w = args.weights + args.count - 1;
    while (w->first_group > group) --w;
    const int64_t rows = args.rows - row < args.chunk_rows ? args.rows - row : args.chunk_rows;
    linear_item(args, *w, (group - w->first_group) * kGroup, row, rows, scratch);
  }
}

}  // namespace simdformer::SF_ISA
