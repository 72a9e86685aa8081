// gemm: C = A B or C += A B      A: (m, k) row-major   B: (k, n) in panels   C: (m, n up to a whole panel)
//
// The layout of panels is told in core/panels.hpp. Sums are float32 (float64 for float64). An element is one
// chain of FMAs in the order of k, started from zero and then added to C: its bits depend neither on m nor on
// the place of its row. Long sums are cut by the caller. Where the CPU multiplies pairs of bfloat16
// (vdpbf16ps), A may be bfloat16 too: two products are then added at a time, and subnormal factors count as
// zero, which is the hardware's doing.
#pragma once

#include "core/panels.hpp"
#include "kernels/dtypes.hpp"

namespace simdformer::SF_ISA {

template <int n>
using Count = std::integral_constant<int, n>;

// ---- operands ---------------------------------------------------------------------------------------------

// Rows of numbers, `stride` of them from one row to the next.
template <class T>
struct Matrix {
  const T* p;
  int64_t stride;

  SF_INLINE const T* row(int64_t i) const { return p + i * stride; }
  SF_INLINE Matrix from(int64_t i, int64_t k = 0) const { return {row(i) + k, stride}; }
};

// Panels of elements, `stride` of them from one panel to the next.
template <class Element>
struct Panels {
  const Element* p;
  int64_t stride;

  // From the panel of `column` and from k on, both where a new run of elements begins.
  SF_INLINE Panels from(int64_t column, int64_t k) const {
    return {p + column / kPanelColumns * stride + k * kPanelColumns, stride};
  }
};

// Rows of sums, which a product replaces or is added to.
template <class A>
struct Tile {
  A* p;
  int64_t stride;
  bool accumulate;

  SF_INLINE Tile from(int64_t i, int64_t column) const {
    return {p + i * stride + column, stride, accumulate};
  }
};

// What the microkernel knows of its operands. kDepth values of k lie side by side in a panel of T, and take
// kSteps steps; Row is the type of A. A step multiplies `column<step>`, the columns that start at p, by
// `row`, what one row of A has at this k in every lane.
template <class T>
struct PanelOf {
  using Element = T;
  using Row = Acc<T>;
  static constexpr int kDepth = 1, kSteps = 1;
  template <int step>
  SF_INLINE static Vec<Acc<T>> column(const T* p) {
    return load(p);
  }
  SF_INLINE static Vec<Acc<T>> row(const Row* a) { return Vec<Acc<T>>(*a); }
};

template <>
struct PanelOf<bfloat16> {
  using Element = bfloat16;
  using Row = float;
  static constexpr int kDepth = 2, kSteps = 2;
  template <int step>
  SF_INLINE static Vec<float> column(const bfloat16* p) {
    using Words = Vec<uint32_t>;
    const Words words = Words::load_unaligned(reinterpret_cast<const uint32_t*>(p));
    if constexpr (step == 0)
      return lanes_as<Vec<float>>(Words(words << 16));
    else
      return lanes_as<Vec<float>>(Words(words & Words(0xffff0000u)));
  }
  SF_INLINE static Vec<float> row(const float* a) { return Vec<float>(*a); }
};

template <class T>
using ElementOf = typename PanelOf<T>::Element;
template <class T>
using RowOf = typename PanelOf<T>::Row;
template <class T>
using SumOf = Acc<ElementOf<T>>;

// A panel of bfloat16 beside rows of bfloat16: a lane is a pair. Only where kBf16Pairs.
struct Pairs {};

template <>
struct PanelOf<Pairs> {
  using Element = bfloat16;
  using Row = bfloat16;
  static constexpr int kDepth = 2, kSteps = 1;
  template <int step>
  SF_INLINE static Bf16Pairs column(const bfloat16* p) {
    return load_pairs(p);
  }
  SF_INLINE static Bf16Pairs row(const bfloat16* a) { return splat_pair(a); }
};

// ---- microkernel ------------------------------------------------------------------------------------------

// MR rows by NV vectors of columns, all sums in registers: kTileRows and kTileVectors say how many of them
// the instruction set holds.

// What a tile of sums asks for while it is multiplied. The hardware's prefetchers stop at a page, and a few rows
// of A read B at the speed of memory.
//
//   panel   the same panel, kPrefetchBytes further: one or two rows, and more of them of 16-bit panels that do
//           not ask for what is next
//   next    the block of the panels that comes after this one, to the second cache, dealt out to the rows of A,
//           or else the first of them would wait for memory. Measured with float32: 14 % at 16 rows on AVX-512,
//           where a tile is four panels wide and the hardware fetches the four streams of up to one tile of rows
//           by itself; 60 and 30 % at 4 and 16 rows on AVX2. With bfloat16 50, 25 and 7 % at 4, 8 and 16 rows on
//           AVX2 beside `panel`.
enum class Asks { nothing, panel, next };
constexpr int kPanelRows = 2;  // up to so many rows a tile asks for its panel
constexpr uintptr_t kPrefetchBytes = 1536;

// Where the next block begins for a tile, and how far it goes on with every k.
struct Ahead {
  uintptr_t address, step;
};
constexpr int64_t kMostAhead = 128;

// The line at `address` in a panel, and those at the same place in the panels beside it: into all caches (3),
// or from the second on (2).
template <int panels, int cache>
SF_INLINE void ask_for(uintptr_t address, uintptr_t panel_bytes) {
  SF_UNROLL for (uintptr_t panel = 0; panel < panels; ++panel)
      __builtin_prefetch(reinterpret_cast<const void*>(address + panel * panel_bytes), 0, cache);
}

template <class T, int MR, int NV, Asks asks>
__attribute__((noinline)) void microkernel(int64_t k, Matrix<RowOf<T>> a, Panels<ElementOf<T>> b,
                                           [[maybe_unused]] Ahead next, Tile<SumOf<T>> c) noexcept {
  using Panel = PanelOf<T>;
  using A = SumOf<T>;
  using V = Vec<A>;
  constexpr int W = static_cast<int>(kLanes<A>), kDepth = Panel::kDepth;
  constexpr int kColumns = static_cast<int>(kPanelColumns), kPanels = (NV * W + kColumns - 1) / kColumns;
  [[maybe_unused]] const uintptr_t panel_bytes = static_cast<uintptr_t>(b.stride) * sizeof(ElementOf<T>);
  V sum[MR][NV];
  SF_UNROLL for (int i = 0; i < MR; ++i) SF_UNROLL for (int v = 0; v < NV; ++v) sum[i][v] = V(A(0));

  // sum[.][v] += row . of A * column vector v at p
  const auto multiply = [&](const auto* a_k, const auto* p, auto step) __attribute__((always_inline)) {
    decltype(Panel::template column<0>(p)) x[NV];
    SF_UNROLL for (int v = 0; v < NV; ++v) {
      const int column = v * W, panel = column / kColumns;
      x[v] = Panel::template column<decltype(step)::value>(p + panel * b.stride + column % kColumns * kDepth);
    }
    SF_UNROLL for (int i = 0; i < MR; ++i) {
      const auto row = Panel::row(a_k + i * a.stride);
      SF_UNROLL for (int v = 0; v < NV; ++v) sum[i][v] = settle(mul_add(row, x[v], sum[i][v]));
    }
  };
  const RowOf<T>* a_k = a.p;
  const ElementOf<T>* b_k = b.p;
  for (; k >= kDepth; k -= kDepth, a_k += kDepth, b_k += kPanelColumns * kDepth) {
    if constexpr (asks == Asks::panel) {
      ask_for<kPanels, 3>(reinterpret_cast<uintptr_t>(b_k) + kPrefetchBytes, panel_bytes);
    } else if constexpr (asks == Asks::next) {
      ask_for<kPanels, 2>(next.address, panel_bytes);
      next.address += next.step;
    }
    multiply(a_k, b_k, Count<0>());
    if constexpr (Panel::kSteps == 2) multiply(a_k + 1, b_k, Count<1>());
  }
  if (k > 0) multiply(a_k, b_k, Count<0>());  // half a pair: the other half is zero

  SF_UNROLL for (int i = 0; i < MR; ++i) SF_UNROLL for (int v = 0; v < NV; ++v) {
    A* out = c.p + i * c.stride + v * W;
    store(out, c.accumulate ? load(static_cast<const A*>(out)) + sum[i][v] : sum[i][v]);
  }
}

// ---- blocking ---------------------------------------------------------------------------------------------

template <class T, int MR, int NV, Asks asks>
SF_INLINE void row_tile(int64_t rows, int64_t k, Matrix<RowOf<T>> a, Panels<ElementOf<T>> b, Ahead next,
                        Tile<SumOf<T>> c) {
  if constexpr (MR > 1) {
    if (rows < MR) return row_tile<T, MR - 1, NV, asks>(rows, k, a, b, next, c);
  }
  microkernel<T, MR, NV, MR <= kPanelRows ? Asks::panel : asks>(k, a, b, next, c);
}

// Columns [begin, end) in tiles of up to MR rows and NV vectors, as far as whole tiles go; returns where they
// end. The tile of B stays in cache while the rows of A pass. Rows are dealt out evenly: 4 + 3, never 6 + 1.
template <class T, int MR, int NV, class Beside>
SF_INLINE int64_t column_tiles(int64_t begin, int64_t end, int64_t m, int64_t k, Matrix<RowOf<T>> a,
                               Panels<ElementOf<T>> b, Tile<SumOf<T>> c, Beside beside) {
  constexpr int64_t kColumns = NV * kLanes<SumOf<T>>, kDepth = PanelOf<T>::kDepth;
  constexpr int64_t kBytes = kPanelColumns * kDepth * static_cast<int64_t>(sizeof(ElementOf<T>));
  constexpr Asks kElse = sizeof(ElementOf<T>) == 2 ? Asks::panel : Asks::nothing;
  const int64_t steps = k / kDepth;
  const bool ahead = m >= kFewestAhead && m <= kMostAhead;
  for (; begin + kColumns <= end; begin += kColumns) {
    const Panels<ElementOf<T>> columns{
        b.p + begin / kPanelColumns * b.stride + begin % kPanelColumns * kDepth, b.stride};
    const uintptr_t after = reinterpret_cast<uintptr_t>(columns.p) + static_cast<uintptr_t>(steps * kBytes);
    int64_t tiles = (m + MR - 1) / MR;
    for (int64_t i = 0; tiles > 0; --tiles) {
      const int64_t rows = (m - i + tiles - 1) / tiles;
      const Ahead next{after + static_cast<uintptr_t>(steps * kBytes * i / m),
                       static_cast<uintptr_t>(kBytes * rows / m)};
      beside();
      if (ahead)
        row_tile<T, MR, NV, Asks::next>(rows, k, a.from(i), columns, next, c.from(i, begin));
      else
        row_tile<T, MR, NV, kElse>(rows, k, a.from(i), columns, next, c.from(i, begin));
      i += rows;
    }
  }
  return begin;
}

// What is left of the columns, in tiles of half the vectors and half of these, down to a panel: chains of one
// vector of columns wait for the latency of an FMA.
template <int NV, int kPanelVectors, class Tiles>
SF_INLINE void halved_tiles(int64_t begin, int64_t end, Tiles tiles) {
  constexpr int kHalf = NV / 2 > kPanelVectors ? NV / 2 : kPanelVectors < NV ? kPanelVectors : NV;
  begin = tiles(begin, Count<kTileRows>(), Count<kHalf>());
  if constexpr (kHalf > kPanelVectors) halved_tiles<kHalf, kPanelVectors>(begin, end, tiles);
}

// C = or += A B, for T = the type of the panels' elements, or Pairs. `beside` is called with every tile.
template <class T, class Beside>
void gemm(int64_t m, int64_t n, int64_t k, Matrix<RowOf<T>> a, Panels<ElementOf<T>> b, Tile<SumOf<T>> c,
          Beside beside) noexcept {
  constexpr int kUsual = kTileVectors[kTileRows];
  constexpr int kPanelVectors = static_cast<int>(kPanelColumns / kLanes<SumOf<T>>);
  const int64_t end = whole_panels(n);
  const auto tiles = [&](int64_t begin, auto rows, auto vectors) __attribute__((always_inline)) {
    return column_tiles<T, decltype(rows)::value, decltype(vectors)::value>(begin, end, m, k, a, b, c,
                                                                            beside);
  };
  int64_t done = 0;
  if (m == 1)
    done = tiles(0, Count<1>(), Count<kTileVectors[1]>());
  else if (m == 2)
    done = tiles(0, Count<2>(), Count<kTileVectors[2]>());
  else
    done = tiles(0, Count<kTileRows>(), Count<kUsual>());
  if (done < end) halved_tiles<kUsual, kPanelVectors>(done, end, tiles);
}

template <class T>
void gemm(int64_t m, int64_t n, int64_t k, Matrix<RowOf<T>> a, Panels<ElementOf<T>> b,
          Tile<SumOf<T>> c) noexcept {
  gemm<T>(m, n, k, a, b, c, [] {});
}

}  // namespace simdformer::SF_ISA
