#include "core/result_memory.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>

#include "core/memory.hpp"

#if defined(__linux__) && !SF_ASAN
#include <malloc.h>
#endif

namespace simdformer {
namespace {

constexpr auto kSmallest = static_cast<int64_t>(kLargeResult);
constexpr int64_t kLargest = int64_t{64} << 20, kMostKept = 2 * kLargest;
constexpr int kPieces = 64;

// A piece may be this much larger than what is wanted; huge pages are rounded.
constexpr int64_t spare_for(int64_t bytes) {
  return bytes < kHuge ? bytes / 8 : std::max(bytes / 8, kHugePage);
}

// What can be written from there on; 0: nobody can say.
int64_t size_of(void* memory) {
#if defined(__linux__) && !SF_ASAN
  return static_cast<int64_t>(malloc_usable_size(memory));
#else
  return static_cast<void>(memory), 0;
#endif
}

// What was freed, the latest last. A thread that finds another one here does without; so does the child of a fork
// that came while one was.
class Kept {
 public:
  void* take(int64_t bytes) noexcept {
    const Turn turn(busy_);
    for (int i = count_ - 1; turn.mine && i >= 0; --i)
      if (pieces_[i].bytes >= bytes && pieces_[i].bytes - bytes <= spare_for(bytes)) return remove(i);
    return nullptr;
  }

  // Whether it stays here.
  bool keep(void* memory) noexcept {
    const int64_t bytes = size_of(memory);
    if (bytes < kSmallest || bytes > kLargest) return false;
    const Turn turn(busy_);
    if (!turn.mine) return false;
    while (count_ == kPieces || bytes_ + bytes > kMostKept) std::free(remove(0));
    pieces_[count_++] = {memory, bytes};
    bytes_ += bytes;
    return true;
  }

 private:
  struct Turn {
    explicit Turn(std::atomic<bool>& busy)
        : busy(busy), mine(!busy.exchange(true, std::memory_order_acquire)) {}
    ~Turn() {
      if (mine) busy.store(false, std::memory_order_release);
    }
    std::atomic<bool>& busy;
    const bool mine;
  };

  struct Piece {
    void* memory;
    int64_t bytes;
  };

  void* remove(int i) noexcept {
    const Piece piece = pieces_[i];
    std::copy(pieces_ + i + 1, pieces_ + count_--, pieces_ + i);
    bytes_ -= piece.bytes;
    return piece.memory;
  }

  std::atomic<bool> busy_{false};
  Piece pieces_[kPieces];
  int count_ = 0;
  int64_t bytes_ = 0;
};

Kept kept;

}  // namespace

void* take_result(std::size_t bytes) noexcept {
  if (bytes > static_cast<std::size_t>(INT64_MAX)) return nullptr;
  const auto wanted = static_cast<int64_t>(bytes);
  if (wanted >= kSmallest)
    if (void* const memory = kept.take(wanted)) return memory;
  if (wanted < kHuge) return std::malloc(bytes);
  try {
    return allocate(wanted).release();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void give_back_result(void* memory) noexcept {
  if (memory != nullptr && !kept.keep(memory)) std::free(memory);
}

}  // namespace simdformer
