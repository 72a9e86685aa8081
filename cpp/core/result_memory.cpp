#include "core/result_memory.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <new>

#include "core/memory.hpp"

#if defined(__linux__) && !SF_ASAN
#include <malloc.h>
#endif

namespace simdformer {
namespace {

constexpr auto kSmallest = static_cast<int64_t>(kLargeResult);
constexpr int64_t kLargest = int64_t{64} << 20, kMostKept = 2 * kLargest;
constexpr int kPieces = 64, kMostPieces = 4096;

// How many train, and what is in use, has been at most since they do, and came from the system.
std::atomic<int> training{0};
std::atomic<int64_t> in_use{0}, most_in_use{0}, made{0};

void count(int64_t bytes) noexcept {
  if (bytes > -kSmallest && bytes < kSmallest) return;
  const int64_t now = in_use.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  int64_t most = most_in_use.load(std::memory_order_relaxed);
  while (now > most && !most_in_use.compare_exchange_weak(most, now, std::memory_order_relaxed)) {
  }
}

// A piece may be this much larger than what is wanted; huge pages are rounded.
constexpr int64_t spare_for(int64_t bytes) {
  return bytes < kHuge ? bytes / 8 : std::max(bytes / 8, kHugePage);
}

// What can be written from there on; 0: nobody can say. Behind a large piece malloc has up to a huge page more or
// none, as the address has it.
int64_t size_of(void* memory) {
#if defined(__linux__) && !SF_ASAN
  const auto bytes = static_cast<int64_t>(malloc_usable_size(memory));
  return bytes < kHuge ? bytes : bytes / kHugePage * kHugePage;
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
    int best = -1;  // the smallest that is large enough, so that the next step finds what this one found
    for (int i = count_ - 1; turn.mine && i >= 0; --i) {
      const int64_t spare = pieces_[i].bytes - bytes;
      if (spare >= 0 && spare <= spare_for(bytes) && (best < 0 || pieces_[i].bytes < pieces_[best].bytes))
        best = i;
    }
    return best < 0 ? nullptr : remove(best);
  }

  // Whether it stays here.
  bool keep(void* memory, int64_t bytes) noexcept {
    const bool all = training.load(std::memory_order_relaxed) > 0;
    if (bytes < kSmallest || (bytes > kLargest && !all)) return false;
    const Turn turn(busy_);
    if (!turn.mine) return false;
    trim(all ? kMostPieces - 1 : kPieces - 1, most_kept(all) - bytes);
    if (bytes_ + bytes > most_kept(all)) return false;
    pieces_[count_++] = {memory, bytes};
    bytes_ += bytes;
    return true;
  }

  // Nobody trains any more.
  void end_training() noexcept {
    const Turn turn(busy_);
    if (turn.mine) trim(kPieces, kMostKept);
  }

  int64_t bytes() const noexcept { return bytes_; }

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

  // Together with what is in use a quarter more than was in use before, and one of the largest pieces: those of the
  // way forwards have other sizes than those of the way back.
  static int64_t most_kept(bool all) noexcept {
    const int64_t most = most_in_use.load(std::memory_order_relaxed);
    const int64_t left = most + most / 4 + kLargest - in_use.load(std::memory_order_relaxed);
    return all ? std::max(kMostKept, left) : kMostKept;
  }

  void trim(int pieces, int64_t bytes) noexcept {
    while (count_ > 0 && (count_ > pieces || bytes_ > bytes)) std::free(remove(0));
  }

  void* remove(int i) noexcept {
    const Piece piece = pieces_[i];
    std::copy(pieces_ + i + 1, pieces_ + count_--, pieces_ + i);
    bytes_ -= piece.bytes;
    return piece.memory;
  }

  std::atomic<bool> busy_{false};
  Piece pieces_[kMostPieces];
  int count_ = 0;
  int64_t bytes_ = 0;
};

Kept kept;

}  // namespace

void* take_result(std::size_t bytes) noexcept {
  if (bytes > static_cast<std::size_t>(INT64_MAX)) return nullptr;
  const auto wanted = static_cast<int64_t>(bytes);
  if (wanted < kSmallest) return std::malloc(bytes);
  void* memory = kept.take(wanted);
  if (memory == nullptr) {
    made.fetch_add(1, std::memory_order_relaxed);
    try {
      memory = wanted < kHuge ? std::malloc(bytes) : allocate(wanted).release();
    } catch (const std::bad_alloc&) {
    }
  }
  if (memory != nullptr) count(size_of(memory));
  return memory;
}

void* take_zeros(std::size_t n, std::size_t size) noexcept {
  const auto bytes = static_cast<int64_t>(n * size);  // numpy has checked the product
  void* memory =
      training.load(std::memory_order_relaxed) > 0 && bytes >= kSmallest ? kept.take(bytes) : nullptr;
  if (memory != nullptr) {
    std::memset(memory, 0, n * size);
  } else {
    made.fetch_add(bytes >= kSmallest ? 1 : 0, std::memory_order_relaxed);
    memory = std::calloc(in_huge_pages(n * size), 1);
  }
  if (memory != nullptr) count(size_of(memory));
  return memory;
}

void* resize_result(void* memory, std::size_t bytes) noexcept {
  const int64_t before = memory == nullptr ? 0 : size_of(memory);
  void* const resized = std::realloc(memory, in_huge_pages(bytes));
  if (resized != nullptr) {
    count(-before);
    count(size_of(resized));
  }
  return resized;
}

void give_back_result(void* memory) noexcept {
  if (memory == nullptr) return;
  const int64_t bytes = size_of(memory);
  count(-bytes);
  if (!kept.keep(memory, bytes)) std::free(memory);
}

void keep_all_results(bool begins) noexcept {
  if (begins) {
    if (training.fetch_add(1) == 0) most_in_use.store(in_use.load());
    return;
  }
  auto models = training.load();
  while (models > 0 && !training.compare_exchange_weak(models, models - 1)) {
  }
  if (models == 1) kept.end_training();
}

ResultMemory result_memory_now() noexcept { return {in_use.load(), kept.bytes(), made.load()}; }

}  // namespace simdformer
