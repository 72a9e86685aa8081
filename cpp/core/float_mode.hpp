// How a thread rounds, and whether it takes subnormals for zero. Programs set it for their own thread
// (fesetround, torch.set_flush_denormal), and a new thread begins with its maker's: a worker that kept that
// would compute other bits than the caller. So a worker takes over the caller's mode with each loop. Traps
// stay as they are: a worker has nobody to tell.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace simdformer {

#if defined(__x86_64__)
constexpr uint64_t kFloatMode = 0xe040;  // MXCSR: flush to zero, rounding, subnormals are zeros
inline uint64_t float_control() { return _mm_getcsr(); }
inline void set_float_control(uint64_t control) { _mm_setcsr(static_cast<uint32_t>(control)); }
#elif defined(__aarch64__)
constexpr uint64_t kFloatMode = 0x3c80000;  // FPCR: FZ16, rounding, FZ, default NaN
inline uint64_t float_control() {
  uint64_t control;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  return control;
}
inline void set_float_control(uint64_t control) { asm volatile("msr fpcr, %0" : : "r"(control)); }
#else
constexpr uint64_t kFloatMode = 0;
inline uint64_t float_control() { return 0; }
inline void set_float_control(uint64_t) {}
#endif

inline uint64_t float_mode() { return float_control() & kFloatMode; }

inline void set_float_mode(uint64_t mode) {
  const uint64_t control = float_control();
  if ((control & kFloatMode) != mode) set_float_control((control & ~kFloatMode) | mode);
}

}  // namespace simdformer
