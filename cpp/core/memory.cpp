#include "core/memory.hpp"

#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace simdformer {

Memory allocate(int64_t bytes) {
  constexpr int64_t kCacheLine = 64, kHugePage = int64_t{2} << 20;
  const bool huge = bytes >= 2 * kHugePage;
  const int64_t alignment = huge ? kHugePage : kCacheLine;
  if (bytes < 0 || bytes > INT64_MAX - alignment) throw std::bad_alloc();
  const auto rounded = static_cast<std::size_t>((bytes + alignment - 1) / alignment * alignment);
  Memory memory(static_cast<char*>(std::aligned_alloc(static_cast<std::size_t>(alignment), rounded)));
  if (memory == nullptr) throw std::bad_alloc();
#if defined(__linux__)
  // Fewer TLB misses. A wish: refusal costs speed only.
  if (huge) madvise(memory.get(), rounded, MADV_HUGEPAGE);
#endif
  return memory;
}

}  // namespace simdformer
