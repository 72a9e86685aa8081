// The loops over rows, which have tails: body and tail are the same expression, so that a value does not depend on
// where it stands.
//
//   map_row    out[i] = f(in[i]...) over a row; any number of inputs, one output or a Pair of them
//   write_row  the same, past the caches where the caller wants that
//   each_register  f at each register of a row, for outputs of several types
//   map_rows   the same over pieces of rows, which are the work items of what is done element by element
//   fold_row   acc = step(acc, in[i]), then the accumulators are combined
//   sum_row    one that adds; sums_of_row several sums at once, of which Sum is a register each
//   dot_row    one that adds products
#pragma once

#include "base/bounds.hpp"
#include "base/kernel_table.hpp"
#include "kernels/dtypes.hpp"

namespace simdformer::SF_ISA {

// Two outputs of one type, where f gives a Pair of registers, are a Pair of pointers.
template <class T>
SF_INLINE T* at(T* p, int64_t i) {
  return p + i;
}
template <class T>
SF_INLINE Pair<T*> at(Pair<T*> p, int64_t i) {
  return {p.a + i, p.b + i};
}
template <class T, class V>
SF_INLINE void store(Pair<T*> p, Pair<V> x) {
  store(p.a, x.a), store(p.b, x.b);
}
template <class T, class V>
SF_INLINE void store_part(Pair<T*> p, int64_t n, Pair<V> x) {
  store_part(p.a, n, x.a), store_part(p.b, n, x.b);
}

template <class T, class V>
SF_INLINE void store_two(Pair<T*> p, Pair<V> x, Pair<V> y) {
  store_two(p.a, x.a, y.a), store_two(p.b, x.b, y.b);
}

template <class Out>
struct ElementOfOutput;
template <class T>
struct ElementOfOutput<T*> {
  using Type = T;
};
template <class T>
struct ElementOfOutput<Pair<T*>> {
  using Type = T;
};

// out[i] = f(in[i]...) over a row. out may be one of the inputs. Where f is next to nothing, several vectors to a
// turn of the loop hide its cost, and bfloat16 is taken in twos.
template <int vectors = 1, class Out, class F, class... In>
SF_INLINE void map_row(Out out, int64_t n, F f, const In*... in) {
  using T = typename ElementOfOutput<Out>::Type;
  constexpr int64_t W = kLanes<Acc<T>>;
  int64_t i = 0;
  if constexpr (vectors > 1) {
    static_assert(vectors % 2 == 0 && (kComeInTwosAlike<T, In> && ...));
    const auto map_two = [&](auto to, auto... x)
                             __attribute__((always_inline)) { store_two(to, f(x.a...), f(x.b...)); };
    for (; i + vectors * W <= n; i += vectors * W)
      SF_UNROLL for (int v = 0; v < vectors; v += 2) map_two(at(out, i + v * W), load_two(in + i + v * W)...);
  }
  for (; i + W <= n; i += W) store(at(out, i), f(load(in + i)...));
  if (i < n) store_part(at(out, i), n - i, f(load_part(in + i, n - i)...));
}

// f(i, read, write) for each register of a row of n elements: f reads its inputs and writes its outputs at i.
template <class A, class F>
SF_INLINE void each_register(int64_t n, F f) {
  constexpr int64_t W = kLanes<A>;
  int64_t i = 0;
  for (; i + W <= n; i += W)
    f(i, [](const auto* p) { return load(p); }, [](auto* p, auto x) { store(p, x); });
  const int64_t left = n - i;
  if (left > 0)
    f(i, [=](const auto* p) { return load_part(p, left); }, [=](auto* p, auto x) { store_part(p, left, x); });
}

// The same, with every whole line of the cache stored past it if `past_caches`. The first input is then prefetched
// `ahead` elements before it is read, if that is not 0.
template <class Out, class F, class First, class... In>
SF_INLINE void write_row(bool past_caches, Out* out, int64_t n, int64_t ahead, F f, const First* x,
                         const In*... in) {
  constexpr int64_t W = kLanes<Acc<Out>>, kSize = sizeof(Out), kInLine = kLineBytes / kSize;
  const auto before = -static_cast<uint64_t>(reinterpret_cast<uintptr_t>(out)) % kLineBytes;
  const bool streams = past_caches && before % kSize == 0;
  const int64_t begin = streams ? min_of(static_cast<int64_t>(before) / kSize, n) : n;
  const int64_t end = begin + (n - begin) / kInLine * kInLine;
  for (int64_t i = begin; i < end; i += W) {
    if (ahead != 0) __builtin_prefetch(x + i + ahead);
    stream(out + i, f(load(x + i), load(in + i)...));
  }
  for (int64_t first = 0, last = begin;; first = end, last = n) {
    map_row(out + first, last - first, f, x + first, (in + first)...);
    if (last == n) return;
  }
}

// piece(offset, length, row of each operand ...) for the work items [begin, end), where rows are cut into pieces of
// `segment` elements: item i is the piece i % pieces of row i / pieces.
template <class Piece, class... Operands>
SF_INLINE void each_piece(int64_t begin, int64_t end, int64_t length, int64_t segment, Piece piece,
                          const Operands&... operands) {
  const int64_t pieces = (length + segment - 1) / segment;
  if (pieces == 0) return;
  int64_t offset = begin % pieces * segment;
  const auto walk = [&](auto... cursor) __attribute__((always_inline)) {
    for (int64_t item = begin; item < end; ++item) {
      piece(offset, min_of(length - offset, segment), cursor.get()...);
      offset += segment;
      if (offset < length) continue;
      offset = 0;
      (cursor.next(), ...);
    }
  };
  walk(RowCursor(operands, begin / pieces)...);
}

// out = f(in...), element by element, for the work items of `args`, whose rows are all of type T.
template <class T, class Args, class F, class... In>
SF_INLINE void map_rows(const Args& args, int64_t begin, int64_t end, F f, const In&... in) {
  const auto map = [&](int64_t offset, int64_t n, char* out, const auto*... x)
                       __attribute__((always_inline)) {
                         write_row(args.past_caches, reinterpret_cast<T*>(out) + offset, n, 0, f,
                                   reinterpret_cast<const T*>(x) + offset...);
                       };
  each_piece(begin, end, args.out.length, args.segment, map, args.out, in...);
  if (args.past_caches) finish_streams();
}

// Short rows side by side from `out` on, stored past the caches: a row is made at place(), and goes to memory when it
// has filled whole lines; what is left waits for the next row. The first and the last line hold others' bytes too.
class LineStream {
 public:
  SF_INLINE explicit LineStream(char* out)
      : held_(static_cast<int64_t>(reinterpret_cast<uintptr_t>(out) % kLineBytes)),
        others_(held_),
        to_(out - held_) {}

  SF_INLINE char* place() { return lines_ + held_; }

  // The row at place() has so many bytes, kShortRow at most.
  SF_INLINE void add(int64_t bytes) {
    using V = Vec<float>;
    constexpr auto kRegister = static_cast<int64_t>(sizeof(V));
    held_ += bytes;
    if (held_ < kLineBytes) return;
    int64_t done = 0;
    if (others_ > 0) copy_own(done = kLineBytes);
    for (; done + kLineBytes <= held_; done += kLineBytes)
      for (int64_t byte = done; byte < done + kLineBytes; byte += kRegister)
        stream(reinterpret_cast<float*>(to_ + byte),
               V::load_aligned(reinterpret_cast<float*>(lines_ + byte)));
    std::memcpy(lines_, lines_ + done, kLineBytes);
    to_ += done;
    held_ -= done;
  }

  // Behind the last row
  SF_INLINE void finish() {
    copy_own(held_);
    finish_streams();
  }

 private:
  SF_INLINE void copy_own(int64_t end) {
    std::memcpy(to_ + others_, lines_ + others_, static_cast<size_t>(end - others_));
    others_ = 0;
  }

  int64_t held_, others_;  // bytes of lines_, and those that begin them and are not ours
  char* to_;               // where lines_ go
  alignas(64) char lines_[kShortRow + 2 * kLineBytes];
};

// Folds a row: acc = step(acc, in[i], more[i]...), then combine over the accumulators. Four of them, because one chain
// of FMAs is bound by latency. The result is still a batch, or several; lanes that a short row does not reach hold
// `init`.
template <class T, class Sum, class Step, class Combine, class... More>
SF_INLINE Sum fold_row(const T* in, int64_t n, Sum init, Step step, Combine combine, const More*... more) {
  constexpr int64_t W = kLanes<Acc<T>>;
  Sum a0(init), a1(init), a2(init), a3(init);
  int64_t i = 0;
  for (; i + 4 * W <= n; i += 4 * W) {
    a0 = step(a0, load(in + i), load(more + i)...);
    a1 = step(a1, load(in + i + W), load(more + i + W)...);
    a2 = step(a2, load(in + i + 2 * W), load(more + i + 2 * W)...);
    a3 = step(a3, load(in + i + 3 * W), load(more + i + 3 * W)...);
  }
  for (; i + W <= n; i += W) a0 = step(a0, load(in + i), load(more + i)...);
  if (i < n) a1 = first_lanes(n - i, step(a1, load_part(in + i, n - i), load_part(more + i, n - i)...), a1);
  return combine(combine(a0, a1), combine(a2, a3));
}

// Partial sums that are added in pairs, the pairs in pairs and so on, because the rounding error of a chain
// of additions grows with its length and that of a tree with its height.
template <class V>
class TreeSum {
 public:
  SF_INLINE void add(V x) {
    int height = 0;
    for (int64_t n = count_++; n % 2 != 0; n /= 2) x = V(waiting_[height++] + x);
    waiting_[height] = x;
  }

  SF_INLINE V total() const {
    V sum(typename V::value_type(0));
    int height = 0;
    for (int64_t n = count_; n > 0; n /= 2, ++height)
      if (n % 2 != 0) sum = waiting_[height] + sum;
    return sum;
  }

 private:
  V waiting_[56];  // one a height: the sum of 2^height blocks that has no partner yet
  int64_t count_ = 0;
};

constexpr int64_t kSumBlock = 1024;  // elements to a leaf of the tree

// The sum over a row, by lanes, of what step(sum, x, more...) adds to sum.
template <class Sum, class T, class Step, class... More>
SF_INLINE Sum sums_of_row(const T* in, int64_t n, Step step, const More*... more) {
  const auto add = [](Sum a, Sum b) { return Sum(a + b); };
  const Sum zero(Acc<T>(0));
  if (n <= kSumBlock) return fold_row(in, n, zero, step, add, more...);
  TreeSum<Sum> sum;
  for (int64_t i = 0; i < n; i += kSumBlock)
    sum.add(fold_row(in + i, min_of(n - i, kSumBlock), zero, step, add, (more + i)...));
  return sum.total();
}

template <class T, class Step, class... More>
SF_INLINE Acc<T> sum_row(const T* in, int64_t n, Step step, const More*... more) {
  return sum_lanes(sums_of_row<Vec<Acc<T>>>(in, n, step, more...));
}

// The sum of x[i] y[i] over a row; of bfloat16 as products of pairs, where the CPU has them.
template <class T>
SF_INLINE Acc<T> dot_row(const T* x, const T* y, int64_t n) {
  using V = Vec<Acc<T>>;
  if constexpr (kBf16Pairs && std::is_same_v<T, bfloat16>) {
    constexpr int64_t W = 2 * kLanes<float>;
    const auto sum_of = [&](int64_t i, int64_t end) {
      V part[4] = {V(0.0f), V(0.0f), V(0.0f), V(0.0f)};
      for (; i + 4 * W <= end; i += 4 * W)
        SF_UNROLL for (int v = 0; v < 4; ++v) part[v] =
            mul_add(load_pairs(x + i + v * W), load_pairs(y + i + v * W), part[v]);
      for (; i + W <= end; i += W) part[0] = mul_add(load_pairs(x + i), load_pairs(y + i), part[0]);
      if (i < end)
        part[1] = mul_add(load_pairs_part(x + i, end - i), load_pairs_part(y + i, end - i), part[1]);
      return V(V(part[0] + part[1]) + V(part[2] + part[3]));
    };
    if (n <= kSumBlock) return sum_lanes(sum_of(0, n));
    TreeSum<V> sum;
    for (int64_t i = 0; i < n; i += kSumBlock) sum.add(sum_of(i, min_of(i + kSumBlock, n)));
    return sum_lanes(sum.total());
  } else {
    return sum_row(x, n, [](V sum, V x, V y) { return mul_add(x, y, sum); }, y);
  }
}

// out[n] = sum of the lanes of x[n], n < 4
template <class A>
SF_INLINE void sum_four(const Vec<A>* x, A* out) {
  using V = Vec<A>;
  if constexpr (std::is_same_v<A, float>) {
    using Twos = Vec<double>;  // two floats move as one
    const Twos a = lanes_as<Twos>(V(zip_lower(x[0], x[1]) + zip_upper(x[0], x[1])));
    const Twos b = lanes_as<Twos>(V(zip_lower(x[2], x[3]) + zip_upper(x[2], x[3])));
    add_quarters(V(lanes_as<V>(zip_lower(a, b)) + lanes_as<V>(zip_upper(a, b))), out);
  } else {
    add_quarters(V(zip_lower(x[0], x[1]) + zip_upper(x[0], x[1])), out);
    add_quarters(V(zip_lower(x[2], x[3]) + zip_upper(x[2], x[3])), out + 2);
  }
}

}  // namespace simdformer::SF_ISA
