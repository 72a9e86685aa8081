// Memory of results. New memory comes from the system a page at a time, which takes longer than computing what goes
// into it (1.5 us for 4 KB in a virtual machine: ten times what SwiGLU takes for them), and goes back when it is
// freed. What was freed here waits for the next result of about its size instead: 128 MB of it at most. While
// somebody trains all of it waits, as long as it and what is in use take little more than was in use before: a step
// lives in the memory of the step before it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace simdformer {

// Bytes from which on a piece is kept; less than that malloc keeps itself.
constexpr std::size_t kLargeResult = std::size_t{256} << 10;

// Null where there is none. It is malloc's: realloc and free may have it, and pieces of theirs may be given back
// here.
void* take_result(std::size_t bytes) noexcept;
void* take_zeros(std::size_t n, std::size_t size) noexcept;
void* resize_result(void* memory, std::size_t bytes) noexcept;
void give_back_result(void* memory) noexcept;

// Somebody begins to train, or ends.
void keep_all_results(bool begins) noexcept;

// Bytes in pieces from kLargeResult on, and how many such pieces came from the system.
struct ResultMemory {
  int64_t in_use, kept, made;
};
ResultMemory result_memory_now() noexcept;

}  // namespace simdformer
