// Which instruction sets this machine runs: runs_<isa>(). Baseline code; the build runs it too, for
// SIMDFORMER_ISAS=best. A compiler that cannot build an instruction set need not know its name: here stand only
// those that the build defines as SIMDFORMER_WITH_<ISA>.
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__linux__)
#include <sys/auxv.h>
#endif

namespace simdformer {

#if defined(__x86_64__)
// __builtin_cpu_supports looks at what the CPU has and the operating system saves. F16C (CPUID leaf 1, ECX bit
// 29) and AVX-VNNI (leaf 7, subleaf 1, EAX bit 4) are looked up by hand, because older compilers, clang 14 for
// one, do not know their names; their registers are AVX's.
inline bool runs_f16c() noexcept {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1);
}
inline bool runs_avx_vnni() noexcept {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}

inline bool runs_baseline() noexcept { return true; }

inline bool runs_avx2() noexcept {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && runs_f16c();
}

inline bool runs_avx512() noexcept {
  return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}

#if defined(SIMDFORMER_WITH_AVX2_VNNI)
inline bool runs_avx2_vnni() noexcept { return runs_avx2() && runs_avx_vnni(); }
#endif
#if defined(SIMDFORMER_WITH_AVX512_VNNI)
inline bool runs_avx512_vnni() noexcept { return runs_avx512() && __builtin_cpu_supports("avx512vnni"); }
#endif
#if defined(SIMDFORMER_WITH_AVX512_BF16)
inline bool runs_avx512_bf16() noexcept {
  return runs_avx512() && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
}
#endif

#else
inline bool runs_neon() noexcept { return true; }

inline bool runs_neon_dotprod() noexcept {
#if defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
  return true;  // every Mac with an ARM processor
#endif
}
#endif

}  // namespace simdformer
