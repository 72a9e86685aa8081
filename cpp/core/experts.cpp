#include "core/experts.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/parallel.hpp"
#include "core/work.hpp"

namespace simdformer {
namespace {

// The k largest of `logits`: found[0 ... i) are those of the first i, and each new one moves to its place.
template <class T>
void likeliest_of(const T* logits, int64_t experts, int64_t k, int64_t* found) {
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

template <class T>
void mix_row(const T* x, const T* weights, int64_t k, int64_t width, T* __restrict out) {
  for (int64_t i = 0; i < width; ++i) out[i] = weights[0] * x[i];
  for (int64_t j = 1; j < k; ++j)
    for (int64_t i = 0; i < width; ++i) out[i] += weights[j] * x[j * width + i];
}

template <class Use>
void with_float(DType dtype, Use use) {
  if (dtype == DType::f64)
    use(double());
  else
    use(float());
}

}  // namespace

void likeliest(const View& logits, int64_t k, int64_t* ids) {
  const int64_t experts = logits.shape[1];
  with_float(logits.dtype, [&](auto type) {
    const auto* all = reinterpret_cast<const decltype(type)*>(logits.data);
    for (int64_t row = 0; row < logits.shape[0]; ++row)
      likeliest_of(all + row * experts, experts, k, ids + row * k);
  });
}

void mix(const View& x, const View& weights, const View& out) {
  const int64_t k = x.shape[1], width = x.shape[2];
  with_float(x.dtype, [&](auto type) {
    using T = decltype(type);
    parallel_for(x.shape[0], grain_of_rows(k * width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        mix_row(reinterpret_cast<const T*>(x.data) + row * k * width,
                reinterpret_cast<const T*>(weights.data) + row * k, k, width,
                reinterpret_cast<T*>(out.data) + row * width);
    });
  });
}

}  // namespace simdformer
