// gemm: C = scale A B or C += scale A B      A: (m, k) row-major   B: (k, n) in panels   C: (m, n up to a panel)
//
// The layout of panels is told in base/panels.hpp. Sums are float32 (float64 for float64). An element is one
// chain of FMAs in the order of k, started from zero, then scaled and added to C: its bits depend neither on m
// nor on the place of its row. Long sums are cut by the caller. Where the CPU multiplies pairs of bfloat16
// (vdpbf16ps), A may be bfloat16 too: two products are then added at a time, and subnormal factors count as
// zero, which is the hardware's doing.
#pragma once

#include "base/cache.hpp"
#include "base/panels.hpp"
#include "base/tuning.hpp"
#include "kernels/counts.hpp"
#include "kernels/dtypes.hpp"

namespace simdformer::SF_ISA {

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
  Cache goal = Cache::first;  // where one or two rows prefetch it to

  // From the panel of `column` and from k on, both where a new run of elements begins.
  SF_INLINE Panels from(int64_t column, int64_t k) const {
    return {p + column / kPanelColumns * stride + k * kPanelColumns, stride, goal};
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

// What a tile prefetches at every k: the line at `address` of its first panel, and those at the same place
// in the panels beside it. The hardware's prefetchers stop at a page, and a few rows of A read B at the speed of
// memory. One or two rows prefetch the same panel further on, to the cache that is its goal. More of them prefetch
// the block of the panels that comes after this one, into the second cache, dealt out to the rows of A: else the first
// of them would wait for memory. (With few rows AVX-512, whose tile is four panels wide, leaves that to the hardware,
// which fetches four streams by itself.)
struct Prefetch {
  uintptr_t address, step;  // step: from one k to the next
  Cache goal;
  uintptr_t tile_step = 0;  // from one tile to the next
};

template <int panels>
SF_INLINE void prefetch_lines(uintptr_t address, uintptr_t panel_bytes, Cache goal) {
  SF_UNROLL for (uintptr_t panel = 0; panel < panels; ++panel)
      prefetch_to(goal, reinterpret_cast<const void*>(address + panel * panel_bytes));
}

// A tile of MR rows by NV vectors of columns, all sums in registers: kTileRows and kTileVectors say how many of them
// the instruction set holds.
template <class T, int MR, int NV, class Beside>
SF_INLINE void multiply_tile(int64_t k, Matrix<RowOf<T>> a, Panels<ElementOf<T>> b, Prefetch next,
                             Tile<SumOf<T>> c, [[maybe_unused]] Beside& beside) {
  using Panel = PanelOf<T>;
  using A = SumOf<T>;
  using V = Vec<A>;
  constexpr int W = static_cast<int>(kLanes<A>), kDepth = Panel::kDepth;
  constexpr int kColumns = static_cast<int>(kPanelColumns);
  constexpr int kPanels = (NV * W + kColumns - 1) / kColumns;
  const uintptr_t panel_bytes = static_cast<uintptr_t>(b.stride) * sizeof(ElementOf<T>);
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
      prefetch_lines<kPanels>(next.address, panel_bytes, MR <= kFewRows ? next.goal : Cache::second);
      next.address += next.step;
      multiply(a_k, b_k, Count<0>());
      if constexpr (Panel::kSteps == 2) multiply(a_k + 1, b_k, Count<1>());
    }
  };
  if constexpr (!std::is_same_v<Beside, Nothing>) {
    constexpr int64_t kBetween = kStepsBetween * kDepth;
    while (k >= kBetween) {
      beside();
      multiply_until(k - kBetween);
    }
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

// Such tiles, one below the other.
template <class T, int MR, int NV, class Beside>
__attribute__((noinline)) void microkernel(int64_t tiles, int64_t k, Matrix<RowOf<T>> a,
                                           Panels<ElementOf<T>> b, Prefetch next, Tile<SumOf<T>> c,
                                           Beside& beside) noexcept {
  for (; tiles > 0; --tiles, a = a.from(MR), c = c.from(MR, 0), next.address += next.tile_step)
    multiply_tile<T, MR, NV>(k, a, b, next, c, beside);
}

// ---- blocking ---------------------------------------------------------------------------------------------

// Some columns, in tiles of up to MR rows and of NV vectors. The tile of B stays in cache while the rows of A pass.
template <class T, int MR, int NV, class Beside>
SF_INLINE void row_tiles(int64_t m, int64_t k, Matrix<RowOf<T>> a, Panels<ElementOf<T>> b, Tile<SumOf<T>> c,
                         Beside& beside) {
  constexpr int64_t kDepth = PanelOf<T>::kDepth;
  constexpr int64_t kBytes = kPanelColumns * kDepth * static_cast<int64_t>(sizeof(ElementOf<T>));
  constexpr bool kWithin = std::is_base_of_v<WithinTiles, Beside>;
  constexpr bool kDeals = MR > kFewRows && (!kWithin || std::is_same_v<Beside, Nothing>);
  constexpr int kFewest = MR < 3 ? MR : (MR + 1) / 2;  // that MR + 1 rows make
  const int64_t block = k / kDepth * kBytes;
  const auto panel = reinterpret_cast<uintptr_t>(b.p);
  // Rows [first, first + tiles * rows)
  const auto multiply = [&](int64_t first, int64_t tiles, int64_t rows) __attribute__((always_inline)) {
    Prefetch next{panel, 0, b.goal};  // the line that is read anyway
    if (kDeals && m >= kFewestRowsForNext && m <= kMostRowsForNext)
      next = {panel + static_cast<uintptr_t>(block + block * first / m),
              static_cast<uintptr_t>(kBytes * rows / m), b.goal, static_cast<uintptr_t>(block * rows / m)};
    else if (MR <= kFewRows || sizeof(ElementOf<T>) == 2)
      next = {panel + kPanelBytesAhead, kBytes, b.goal};
    const auto run = [&](int64_t some, auto& within) __attribute__((always_inline)) {
      with_count<MR, kFewest>(rows, [&](auto count) __attribute__((always_inline)) {
        microkernel<T, decltype(count)::value, NV>(some, k, a.from(first), b, next, c.from(first, 0), within);
      });
    };
    if constexpr (kWithin) {
      run(tiles, beside);
    } else {
      Nothing nothing;
      for (; tiles > 0; --tiles, first += rows) {
        beside();
        run(1, nothing);
      }
    }
  };
  const Shares tiles = shares_of(m, MR);
  if (tiles.larger > 0) multiply(0, tiles.larger, tiles.n + 1);
  if (tiles.others > 0) multiply(tiles.larger * (tiles.n + 1), tiles.others, tiles.n);
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
      row_tiles<T, MR, NV>(m, k, a, {part, b.stride, b.goal}, c.from(0, begin), beside);
    }
  } else {
    constexpr int kMost = static_cast<int>(kColumns / kPanelColumns), kPanelVectors = NV / kMost;
    each_share(panels, kMost, [&](int64_t i, int64_t count) __attribute__((always_inline)) {
      const int64_t column = i * kPanelColumns;
      with_count<kMost>(count, [&](auto tile) __attribute__((always_inline)) {
        row_tiles<T, MR, decltype(tile)::value * kPanelVectors>(m, k, a, b.from(column, 0), c.from(0, column),
                                                                beside);
      });
    });
  }
}

// C = or += scale A B, for T = the type of the panels' elements, or Pairs.
template <class T, class Beside>
void gemm(int64_t m, int64_t n, int64_t k, Matrix<RowOf<T>> a, Panels<ElementOf<T>> b, Tile<SumOf<T>> c,
          Beside& beside) noexcept {
  const int64_t panels = whole_panels(n) / kPanelColumns;
  with_count<3>(m, [&](auto rows) __attribute__((always_inline)) {
    constexpr int MR = decltype(rows)::value < 3 ? decltype(rows)::value : kTileRows;
    column_tiles<T, MR, kTileVectors[MR]>(panels, m, k, a, b, c, beside);
  });
}

}  // namespace simdformer::SF_ISA
