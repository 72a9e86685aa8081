// The CPU cannot multiply pairs of bfloat16: kBf16Pairs is looked at first, and these functions are named and never
// called.
#pragma once

namespace simdformer::SF_ISA {

constexpr bool kBf16Pairs = false;
struct Bf16Pairs {};
Bf16Pairs load_pairs(const bfloat16* p);
Bf16Pairs load_pairs_part(const bfloat16* p, int64_t n);
Bf16Pairs splat_pair(const bfloat16* p);
Vec<float> mul_add(Bf16Pairs a, Bf16Pairs b, Vec<float> sum);

}  // namespace simdformer::SF_ISA
