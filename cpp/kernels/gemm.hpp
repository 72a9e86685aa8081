// gemm: C = scale A B or C += scale A B      A: (m, k) row-major   B: (k, n) in panels   C: (m, n up to a panel)
//
// The layout of panels is told in base/panels.hpp. Sums are float32 (float64 for float64). An element is one
// chain of FMAs in the order of k, started from zero, then scaled and added to C: its bits depend neither on m
// nor on the place of its row. Long sums are cut by the caller. Where the CPU multiplies pairs of bfloat16
// (vdpbf16ps), A may be bfloat16 too: two products are then added at a time, and subnormal factors count as
// zero, which is the hardware's doing.
#pragma once

#include "base/panels.hpp"
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

// Rows of sums, which a product, scaled, replaces or is added to.
template <class A>
struct Tile {
  A* p;
  int64_t stride;
  bool accumulate;
  A scale = A(1);

  SF_INLINE Tile from(int64_t i, int64_t column) const {
    return {p + i * stride + column, stride, accumulate, scale};
  }
};

// What is done beside a product: a function called with every tile of registers or, where its class is one of
// these, every kStepsBetween steps within the tiles.
struct WithinTiles {};
constexpr int64_t kStepsBetween = 16;

struct Nothing : WithinTiles {
  SF_INLINE void operator()() const {}
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

template <class T, int MR, int NV, Asks asks, class Beside>
__attribute__((noinline)) void microkernel(int64_t k, Matrix<RowOf<T>> a, Panels<ElementOf<T>> b,
                                           [[maybe_unused]] Ahead next, Tile<SumOf<T>> c,
                                           [[maybe_unused]] Beside& beside) noexcept {
  using Panel = PanelOf<T>;
  using A = SumOf<T>;
  using V = Vec<A>;
  constexpr int W = static_cast<int>(kLanes<A>), kDepth = Panel::kDepth;
  constexpr int kColumns = static_cast<int>(kPanelColumns);
  [[maybe_unused]] constexpr int kPanels = (NV * W + kColumns - 1) / kColumns;
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
  const auto multiply_until = [&](int64_t left) __attribute__((always_inline)) {
    for (; k >= left + kDepth; k -= kDepth, a_k += kDepth, b_k += kPanelColumns * kDepth) {
      if constexpr (asks == Asks::panel) {
        ask_for<kPanels, 3>(reinterpret_cast<uintptr_t>(b_k) + kPrefetchBytes, panel_bytes);
      } else if constexpr (asks == Asks::next) {
        ask_for<kPanels, 2>(next.address, panel_bytes);
        next.address += next.step;
      }
      multiply(a_k, b_k, Count<0>());
      if constexpr (Panel::kSteps == 2) multiply(a_k + 1, b_k, Count<1>());
    }
  };
  if constexpr (!std::is_same_v<Beside, Nothing>) {
    constexpr int64_t kBetween = kStepsBetween * kDepth;
    for (; k >= kBetween; multiply_until(k - kBetween)) beside();
  }
  multiply_until(0);
  if (k > 0) multiply(a_k, b_k, Count<0>());  // half a pair: the other half is zero

  if (c.scale != A(1)) {
    SF_UNROLL for (int i = 0; i < MR; ++i) SF_UNROLL for (int v = 0; v < NV; ++v) sum[i][v] *= V(c.scale);
  }
  SF_UNROLL for (int i = 0; i < MR; ++i) SF_UNROLL for (int v = 0; v < NV; ++v) {
    A* out = c.p + i * c.stride + v * W;
    store(out, c.accumulate ? load(static_cast<const A*>(out)) + sum[i][v] : sum[i][v]);
  }
}

// ---- blocking ---------------------------------------------------------------------------------------------

template <class T, int MR, int NV, Asks asks, class Beside>
SF_INLINE void row_tile(int64_t rows, int64_t k, Matrix<RowOf<T>> a, Panels<ElementOf<T>> b, Ahead next,
                        Tile<SumOf<T>> c, Beside& beside) {
  if constexpr (MR > 1) {
    if (rows < MR) return row_tile<T, MR - 1, NV, asks>(rows, k, a, b, next, c, beside);
  }
  microkernel<T, MR, NV, MR <= kPanelRows ? Asks::panel : asks>(k, a, b, next, c, beside);
}

// Some columns, in tiles of up to MR rows and of NV vectors. The tile of B stays in cache while the rows of A
// pass. Rows are dealt out evenly: 4 + 3, never 6 + 1.
template <class T, int MR, int NV, class Beside>
SF_INLINE void row_tiles(int64_t m, int64_t k, Matrix<RowOf<T>> a, Panels<ElementOf<T>> b, Tile<SumOf<T>> c,
                         Beside& beside) {
  constexpr int64_t kDepth = PanelOf<T>::kDepth;
  constexpr int64_t kBytes = kPanelColumns * kDepth * static_cast<int64_t>(sizeof(ElementOf<T>));
  constexpr bool kWithin = std::is_base_of_v<WithinTiles, Beside>;
  constexpr Asks kElse = sizeof(ElementOf<T>) == 2 ? Asks::panel : Asks::nothing;
  constexpr Asks kNext = kWithin && !std::is_same_v<Beside, Nothing> ? kElse : Asks::next;
  const int64_t steps = k / kDepth;
  const bool ahead = m >= kFewestAhead && m <= kMostAhead;
  const uintptr_t after = reinterpret_cast<uintptr_t>(b.p) + static_cast<uintptr_t>(steps * kBytes);
  int64_t tiles = (m + MR - 1) / MR;
  for (int64_t i = 0; tiles > 0; --tiles) {
    const int64_t rows = (m - i + tiles - 1) / tiles;
    const Ahead next{after + static_cast<uintptr_t>(steps * kBytes * i / m),
                     static_cast<uintptr_t>(kBytes * rows / m)};
    const auto multiply = [&](auto& within) __attribute__((always_inline)) {
      if (ahead)
        row_tile<T, MR, NV, kNext>(rows, k, a.from(i), b, next, c.from(i, 0), within);
      else
        row_tile<T, MR, NV, kElse>(rows, k, a.from(i), b, next, c.from(i, 0), within);
    };
    if constexpr (kWithin) {
      multiply(beside);
    } else {
      Nothing nothing;
      beside();
      multiply(nothing);
    }
    i += rows;
  }
}

// `panels` of B, at most `most`: one tile of columns.
template <class T, int MR, int most, class Beside>
SF_INLINE void panel_tile(int64_t panels, int64_t m, int64_t k, Matrix<RowOf<T>> a, Panels<ElementOf<T>> b,
                          Tile<SumOf<T>> c, Beside& beside) {
  constexpr int kPanelVectors = static_cast<int>(kPanelColumns / kLanes<SumOf<T>>);
  if constexpr (most > 1) {
    if (panels < most) return panel_tile<T, MR, most - 1>(panels, m, k, a, b, c, beside);
  }
  row_tiles<T, MR, most * kPanelVectors>(m, k, a, b, c, beside);
}

// All columns. Panels are dealt out evenly to tiles of up to NV vectors, as rows are: a tile of one panel by
// six rows may wait for the latency of an FMA. Where not even a panel fits a tile, parts of it pass.
template <class T, int MR, int NV, class Beside>
SF_INLINE void column_tiles(int64_t panels, int64_t m, int64_t k, Matrix<RowOf<T>> a, Panels<ElementOf<T>> b,
                            Tile<SumOf<T>> c, Beside& beside) {
  constexpr int64_t kColumns = NV * kLanes<SumOf<T>>;
  if constexpr (kColumns <= kPanelColumns) {
    for (int64_t begin = 0; begin < panels * kPanelColumns; begin += kColumns) {
      const ElementOf<T>* part = b.from(begin, 0).p + begin % kPanelColumns * PanelOf<T>::kDepth;
      row_tiles<T, MR, NV>(m, k, a, {part, b.stride}, c.from(0, begin), beside);
    }
  } else {
    constexpr int kMost = static_cast<int>(kColumns / kPanelColumns);
    int64_t tiles = (panels + kMost - 1) / kMost;
    for (int64_t i = 0; tiles > 0; --tiles) {
      const int64_t count = (panels - i + tiles - 1) / tiles;
      panel_tile<T, MR, kMost>(count, m, k, a, b.from(i * kPanelColumns, 0), c.from(0, i * kPanelColumns),
                               beside);
      i += count;
    }
  }
}

// C = or += scale A B, for T = the type of the panels' elements, or Pairs.
template <class T, class Beside>
void gemm(int64_t m, int64_t n, int64_t k, Matrix<RowOf<T>> a, Panels<ElementOf<T>> b, Tile<SumOf<T>> c,
          Beside& beside) noexcept {
  const int64_t panels = whole_panels(n) / kPanelColumns;
  const auto multiply = [&](auto rows) __attribute__((always_inline)) {
    constexpr int MR = decltype(rows)::value;
    column_tiles<T, MR, kTileVectors[MR]>(panels, m, k, a, b, c, beside);
  };
  if (m == 1)
    multiply(Count<1>());
  else if (m == 2)
    multiply(Count<2>());
  else
    multiply(Count<kTileRows>());
}

template <class T>
void gemm(int64_t m, int64_t n, int64_t k, Matrix<RowOf<T>> a, Panels<ElementOf<T>> b,
          Tile<SumOf<T>> c) noexcept {
  Nothing nothing;
  gemm<T>(m, n, k, a, b, c, nothing);
}

}  // namespace simdformer::SF_ISA
