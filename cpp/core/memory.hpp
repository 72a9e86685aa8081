// Memory in one piece: 64-byte aligned, in huge pages where it is large enough to span some.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

// What watches over single allocations, and must see each by itself.
#if defined(__has_feature)
#define SF_ASAN __has_feature(address_sanitizer)
#elif defined(__SANITIZE_ADDRESS__)
#define SF_ASAN 1
#else
#define SF_ASAN 0
#endif

namespace simdformer {

struct FreeMemory {
  void operator()(char* memory) const noexcept { std::free(memory); }
};
using Memory = std::unique_ptr<char, FreeMemory>;

constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kHuge = 2 * kHugePage;  // from here on memory has huge pages of its own

// What is allocated of so many bytes: large pieces in whole huge pages, so that the same bytes always find the same
// piece.
constexpr std::size_t in_huge_pages(std::size_t bytes) {
  constexpr auto page = static_cast<std::size_t>(kHugePage);
  return bytes < static_cast<std::size_t>(kHuge) ? bytes : (bytes + page - 1) / page * page;
}

// At least `bytes` of it. Throws std::bad_alloc.
Memory allocate(int64_t bytes);

// The same for a weight. The small ones lie side by side in blocks of huge pages: read once a token they would
// need a new page of the small kind every 64 cache lines. A weight gives back its own pages.
using WeightMemory = std::shared_ptr<char>;
WeightMemory allocate_weight(int64_t bytes);

}  // namespace simdformer
