// attention, through the thread pool, against xtensor in float64: few rows and many, with every variation.
#include <algorithm>
#include <cmath>
#include <limits>
#include <xtensor/xmath.hpp>
#include <xtensor/xview.hpp>

#include "arrays.hpp"
#include "check.hpp"
#include "core/attention.hpp"
#include "core/parallel.hpp"

namespace simdformer::tests {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

enum class Mask { none, boolean, additive };

// One problem: (B, H, L, D) queries beside (B, K, S, D) keys and (B, K, S, Dv) values.
struct Problem {
  std::size_t B, H, K, L, S, D, Dv;
  bool has_offsets = false, has_starts = false, has_lengths = false, has_sinks = false;
  int64_t causal_offset = 0, left = kUnbounded, right = kUnbounded, chunk = 0;
  double softcap = 0;
  Mask mask = Mask::none;

  // For sequence b.
  int64_t offset(std::size_t b) const {
    return causal_offset - (has_offsets ? 2 * static_cast<int64_t>(b) : 0);
  }
  int64_t length(std::size_t b) const {
    const auto keys = static_cast<int64_t>(S);
    return has_lengths ? std::max<int64_t>(0, b == 0 ? keys - keys / 3 : keys / 4) : keys;
  }
  int64_t start(std::size_t b) const { return has_starts ? static_cast<int64_t>(S / (b + 5)) : 0; }
  int64_t chunk_of(std::size_t b, __int128 position) const {
    const __int128 before = position - start(b);
    return chunk == 0 ? 0 : static_cast<int64_t>((before - (before < 0 ? chunk - 1 : 0)) / chunk);
  }
  bool sees(std::size_t b, std::size_t i, std::size_t j) const {
    const __int128 key = static_cast<__int128>(j), position = static_cast<__int128>(i) + offset(b);
    return key >= start(b) && key < length(b) && (left == kUnbounded || key >= position - left) &&
           (right == kUnbounded || key <= position + right) && chunk_of(b, key) == chunk_of(b, position);
  }
};

// The first three have at most 16 rows a key/value head: they are dot products with keys in place.
const Problem kSizes[] = {
    {1, 1, 1, 1, 1, 1, 1},     {2, 4, 2, 1, 5, 16, 16},    {1, 8, 2, 4, 70, 33, 17},
    {1, 2, 2, 3, 1100, 8, 9},  {1, 2, 2, 3, 0, 4, 4},      {1, 1, 1, 17, 17, 5, 3},
    {2, 4, 2, 20, 33, 16, 16}, {1, 6, 2, 20, 300, 40, 24}, {1, 2, 1, 130, 270, 24, 7},
    {1, 2, 1, 30, 0, 4, 4},    {2, 4, 2, 3, 40, 8, 0},     {1, 2, 1, 40, 300, 8, 0},
};

struct Variation {
  const char* name;
  void (*apply)(Problem&);
};
const Variation kVariations[] = {
    {"plain", [](Problem&) {}},
    {"causal", [](Problem& p) { p.right = 0; }},
    {"causal, bottom right",
     [](Problem& p) {
       p.right = 0;
       p.causal_offset = static_cast<int64_t>(p.S) - static_cast<int64_t>(p.L);
     }},
    {"causal, by sequence",
     [](Problem& p) {
       p.right = 0;
       p.has_offsets = true;
       p.causal_offset = 1;
     }},
    {"window",
     [](Problem& p) {
       p.left = 8, p.right = 0;
       p.causal_offset = static_cast<int64_t>(p.S / 2);
     }},
    {"window of two sides",
     [](Problem& p) {
       p.left = 3, p.right = 40;
       p.causal_offset = static_cast<int64_t>(p.S / 3);
     }},
    {"chunks", [](Problem& p) { p.chunk = 33, p.right = 0, p.has_starts = p.has_offsets = true; }},
    {"far offset", [](Problem& p) { p.right = 0, p.causal_offset = INT64_MAX, p.left = INT64_MAX - 1; }},
    {"far sides", [](Problem& p) { p.causal_offset = INT64_MIN / 2, p.right = INT64_MAX - 1; }},
    {"nothing seen", [](Problem& p) { p.right = 0, p.causal_offset = INT64_MIN / 2; }},
    {"starts", [](Problem& p) { p.has_starts = p.has_lengths = true; }},
    {"lengths", [](Problem& p) { p.has_lengths = true; }},
    {"boolean mask", [](Problem& p) { p.mask = Mask::boolean; }},
    {"additive mask", [](Problem& p) { p.mask = Mask::additive; }},
    {"softcap", [](Problem& p) { p.softcap = 1.5; }},
    {"sinks", [](Problem& p) { p.has_sinks = true; }},
    {"all",
     [](Problem& p) {
       p.has_starts = p.has_lengths = p.has_offsets = p.has_sinks = true;
       p.causal_offset = static_cast<int64_t>(p.S / 2) + 1;
       p.left = 19, p.right = 3, p.chunk = 50;
       p.softcap = 2;
       p.mask = Mask::additive;
     }},
};

struct Mixture {
  DType query, key;
};
constexpr Mixture kMixtures[] = {
    {DType::f32, DType::f32}, {DType::f64, DType::f64},  {DType::f16, DType::f16}, {DType::bf16, DType::bf16},
    {DType::f32, DType::f16}, {DType::f32, DType::bf16}, {DType::f16, DType::f32}, {DType::bf16, DType::f32},
};

struct Inputs {
  Array query, key, value, mask, sinks;
};

// What no query of its sequence may look at is NaN.
Inputs inputs_of(const Problem& p, const Mixture& mixture) {
  Values key = normal({p.B, p.K, p.S, p.D}, 2), value = normal({p.B, p.K, p.S, p.Dv}, 3);
  for (std::size_t b = 0; b < p.B; ++b)
    for (std::size_t j = 0; j < p.S; ++j) {
      const auto position = static_cast<int64_t>(j);
      if (position >= p.start(b) && position < p.length(b)) continue;
      xt::view(key, b, xt::all(), j) = std::nan("");
      if (p.Dv > 0) xt::view(value, b, xt::all(), j) = std::nan("");  // xtensor counts back from null else
    }
  Values mask = normal({p.H, p.L, p.S}, 4);  // the same for all sequences
  for (std::size_t i = 0; i < mask.size(); ++i) {
    if (p.mask == Mask::boolean) mask.flat(i) = mask.flat(i) > 0;
    if (p.mask == Mask::additive && i % 5 == 0) mask.flat(i) = -kInfinity;
  }
  return {Array(normal({p.B, p.H, p.L, p.D}, 1), mixture.query, 1), Array(key, mixture.key, 2),
          Array(value, mixture.key, 3), Array(mask, p.mask == Mask::boolean ? DType::boolean : DType::f32, 1),
          Array(normal({p.H}, 5), accumulator(mixture.query))};
}

// The result by the definition, and the magnitude of what is added up on the way.
struct Answer {
  Values out, out_scale, scores, scores_scale, weights, lse;
};

Answer answer_of(const Problem& p, const Inputs& inputs, double scale) {
  const Values query = inputs.query.values(), mask = inputs.mask.values(), sinks = inputs.sinks.values();
  const Values key = xt::nan_to_num(inputs.key.values()), value = xt::nan_to_num(inputs.value.values());
  Answer a;
  a.out = a.out_scale = xt::zeros<double>({p.B, p.H, p.L, p.Dv});
  a.scores = a.scores_scale = a.weights = xt::zeros<double>({p.B, p.H, p.L, p.S});
  a.lse = xt::zeros<double>({p.B, p.H, p.L});
  for (std::size_t b = 0; b < p.B; ++b)
    for (std::size_t h = 0; h < p.H; ++h) {
      const std::size_t group = h / (p.H / p.K);
      const Values q = xt::view(query, b, h), k = xt::view(key, b, group), v = xt::view(value, b, group);
      Values scores = product(q, k) * scale, magnitude = product(xt::abs(q), xt::abs(k)) * scale;
      if (p.softcap > 0) scores = p.softcap * xt::tanh(scores / p.softcap);
      for (std::size_t i = 0; i < p.L; ++i)
        for (std::size_t j = 0; j < p.S; ++j) {
          if (p.mask == Mask::additive) scores(i, j) += mask(h, i, j);
          if (!p.sees(b, i, j) || (p.mask == Mask::boolean && mask(h, i, j) == 0)) scores(i, j) = -kInfinity;
        }
      for (std::size_t i = 0; i < p.L; ++i) {
        const Values row = xt::view(scores, i, xt::all());
        double highest = p.has_sinks ? sinks(h) : -kInfinity;
        for (const double score : row) highest = std::max(highest, score);
        const bool sees_nothing = highest == -kInfinity;
        Values e = sees_nothing ? Values(xt::zeros_like(row)) : Values(xt::exp(row - highest));
        const double sum = xt::sum(e)() + (p.has_sinks ? std::exp(sinks(h) - highest) : 0.0);
        if (!sees_nothing) e /= sum;
        xt::view(a.weights, b, h, i, xt::all()) = e;
        xt::view(a.lse, b, h, i) = sees_nothing ? -kInfinity : highest + std::log(sum);
      }
      const Values weights = xt::view(a.weights, b, h);
      xt::view(a.out, b, h) = product(weights, xt::transpose(v));
      xt::view(a.out_scale, b, h) = product(weights, xt::abs(xt::transpose(v)));
      xt::view(a.scores, b, h) = scores;
      xt::view(a.scores_scale, b, h) = magnitude + 1.0;
    }
  return a;
}

// The arrays that a call refers to, and the call.
struct Call {
  Attention attention;
  View mask, weights, scores, lse;
  std::vector<int64_t> offsets, starts, lengths;
};

void run(const Problem& p, const Inputs& inputs, double scale, const Array& out,
         const Array* weights = nullptr, const Array* scores = nullptr, const Array* lse = nullptr) {
  Call c;
  Attention& call = c.attention;
  call.query = inputs.query.view();
  call.key = inputs.key.view();
  call.value = inputs.value.view();
  call.out = out.view();
  const View mask = inputs.mask.view();
  c.mask.data = mask.data;
  c.mask.dtype = mask.dtype;
  c.mask.rank = 4;
  for (int axis = 0; axis < 4; ++axis) {
    c.mask.shape[axis] = axis == 0 ? static_cast<int64_t>(p.B) : mask.shape[axis - 1];
    c.mask.strides[axis] = axis == 0 ? 0 : mask.strides[axis - 1];
  }
  if (p.mask != Mask::none) call.mask = &c.mask;
  for (std::size_t b = 0; b < p.B; ++b) {
    c.offsets.push_back(p.offset(b));
    c.starts.push_back(p.start(b));
    c.lengths.push_back(p.length(b));
  }
  call.causal_offset = p.causal_offset;
  if (p.has_offsets) call.causal_offsets = c.offsets.data();
  if (p.has_starts) call.key_starts = c.starts.data();
  if (p.has_lengths) call.key_lengths = c.lengths.data();
  call.left = p.left, call.right = p.right, call.chunk = p.chunk;
  call.scale = scale;
  call.softcap = p.softcap;
  if (p.has_sinks) call.sinks = inputs.sinks.data();
  call.sinks_dtype = inputs.sinks.dtype();
  if (weights) c.weights = weights->view(), call.weights = &c.weights;
  if (scores) c.scores = scores->view(), call.scores = &c.scores;
  if (lse) c.lse = lse->view(), call.lse = &c.lse;
  attention(call);
}

// body(problem, mixture) for each size, variation and mixture of dtypes.
template <class Body>
void for_each_problem(Body body) {
  for (const Problem& size : kSizes)
    for (const Variation& variation : kVariations)
      for (const Mixture& mixture : kMixtures) {
        if (size.L * size.S > 10000 && mixture.query != mixture.key) continue;  // the reference is slow
        const Note note(words("case", variation.name, "L", size.L, "S", size.S, "query",
                              name_of(mixture.query), "key", name_of(mixture.key)));
        Problem problem = size;
        variation.apply(problem);
        body(problem, mixture);
      }
}

}  // namespace

TEST(attention_is_what_xtensor_computes) {
  for_each_problem([](const Problem& p, const Mixture& mixture) {
    const Inputs inputs = inputs_of(p, mixture);
    const double scale = 1 / std::sqrt(static_cast<double>(p.D));
    const Answer wanted = answer_of(p, inputs, scale);
    const DType wide = accumulator(mixture.query);
    for_each_isa([&] {
      const Array out = result({p.B, p.H, p.L, p.Dv}, mixture.query);
      const Array weights = result({p.B, p.H, p.L, p.S}, wide), scores = result({p.B, p.H, p.L, p.S}, wide);
      const Array lse = result({p.B, p.H, p.L}, wide);
      run(p, inputs, scale, out, &weights, &scores, &lse);
      check_close(out, wanted.out, wanted.out_scale, 32);
      check_close(weights, wanted.weights, wanted.weights, 64);
      check_close(scores, wanted.scores, wanted.scores_scale, 8);
      check_close(lse, wanted.lse, xt::abs(wanted.lse) + 1.0, 32);

      const Array alone = result({p.B, p.H, p.L, p.Dv}, mixture.query);
      run(p, inputs, scale, alone);
      CHECK(alone.bytes() == out.bytes());  // whatever else is wanted
    });
  });
}

TEST(the_bits_of_attention_do_not_depend_on_threads) {
  const int before = num_threads();
  for_each_problem([](const Problem& p, const Mixture& mixture) {
    if (p.L * p.S < 1000) return;
    const Inputs inputs = inputs_of(p, mixture);
    set_num_threads(1);
    const Array alone = result({p.B, p.H, p.L, p.Dv}, mixture.query);
    run(p, inputs, 0.2, alone);
    set_num_threads(3);
    const Array together = result({p.B, p.H, p.L, p.Dv}, mixture.query);
    run(p, inputs, 0.2, together);
    CHECK(alone.bytes() == together.bytes());
  });
  set_num_threads(before);
}

}  // namespace simdformer::tests
