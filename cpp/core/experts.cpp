#include "core/experts.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/parallel.hpp"
#include "core/work.hpp"

namespace simdformer {
namespace {

// The k largest of `logits`: found[0 ... i) are those of the first i, and each new one moves to its place.
template <class T>
void top_k_of(const T* logits, int64_t experts, int64_t k, int64_t* found) {
  const auto key = [&](int64_t id) {
    return std::isnan(logits[id]) ? -std::numeric_limits<T>::infinity() : logits[id];
  };
  for (int64_t id = 0; id < experts; ++id) {
    if (id >= k && !(key(id) > key(found[k - 1]))) continue;
    int64_t at = std::min(id, k - 1);
    for (; at > 0 && key(id) > key(found[at - 1]); --at) found[at] = found[at - 1];
    found[at] = id;
  }
}

// Rows j of x, `k` of them, times weights[j].
template <class T>
void combine_rows(RowCursor& x, const T* weights, int64_t k, int64_t width, T* __restrict out) {
  for (int64_t j = 0; j < k; ++j, x.next()) {
    const T* const row = x.as<const T>();
    if (j == 0)
      for (int64_t i = 0; i < width; ++i) out[i] = weights[0] * row[i];
    else
      for (int64_t i = 0; i < width; ++i) out[i] += weights[j] * row[i];
  }
}

template <class Use>
void with_float(DType dtype, Use use) {
  if (dtype == DType::f64)
    use(double());
  else
    use(float());
}

}  // namespace

void top_k(const View& logits, int64_t k, int64_t* ids) {
  const Rows rows = rows_of(logits);
  with_float(rows.dtype, [&](auto type) {
    parallel_for(rows.count, grain_of_rows(2 * rows.length), [&](int64_t begin, int64_t end) {
      RowCursor row(rows, begin);
      for (int64_t i = begin; i < end; ++i, row.next())
        top_k_of(row.as<const decltype(type)>(), rows.length, k, ids + i * k);
    });
  });
}

void combine_experts(const View& x, const View& weights, const View& out) {
  if (out.size() == 0) return;
  const Rows from = rows_of(x), shares = rows_of(weights), to = rows_of(out);
  const int64_t k = shares.length, width = from.length;
  if (k == 0) {
    RowCursor sum(to, 0);
    for (int64_t i = 0; i < to.count; ++i, sum.next())
      std::memset(sum.get(), 0, static_cast<size_t>(width * itemsize(to.dtype)));
    return;
  }
  with_float(x.dtype, [&](auto type) {
    using T = decltype(type);
    parallel_for(to.count, grain_of_rows(k * width), [&](int64_t begin, int64_t end) {
      RowCursor rows(from, begin * k), share(shares, begin), sum(to, begin);
      for (int64_t i = begin; i < end; ++i, share.next(), sum.next())
        combine_rows(rows, share.as<const T>(), k, width, sum.as<T>());
    });
  });
}

}  // namespace simdformer
