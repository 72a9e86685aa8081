// What was found by measuring, all in one place. Where no machine is named it was a Zen 5 (an AMD EPYC of two to
// four cores in a virtual machine, 2 MB of second and 32 MB of last cache for two), GCC 12, 21 to 23 November 2026.
// None of it changes a result, but for how sums are rounded. How many rows and columns registers hold is said by each
// instruction set (cpp/isa).
#pragma once

#include <cstdint>

namespace simdformer {

// ---- sizes of memory --------------------------------------------------------------------------------------

// This many bytes do not stay in a second cache, nor in the last one of most machines.
constexpr int64_t kFarBytes = int64_t{1} << 20, kFarthestBytes = int64_t{32} << 20;
// Rows that are stored past the caches have this many bytes at least: short ones share too many lines with their
// neighbours, which are read all the same (2 KB: a fifth slower).
constexpr int64_t kLongRow = 8 << 10;
// Rows up to here are put together to whole lines first.
constexpr int64_t kShortRow = 4 << 10;

// ---- prefetching: how far ahead ---------------------------------------------------------------------------

// A panel, by products of up to so many rows of x.
constexpr int kFewRows = 2;
constexpr uintptr_t kPanelBytesAhead = 1536;
// The next block of panels is dealt out to the rows of x, up to this many: 14 % at 16 rows with AVX-512, 60 and 30 %
// at 4 and 16 rows with AVX2.
constexpr int64_t kMostRowsForNext = 128;
// Steps of a product from one call of what runs within its tiles to the next.
constexpr int64_t kStepsBetween = 16;
// Rows of a plain weight, by dot products.
constexpr int64_t kDotBytesAhead = 16 << 10;
// A slice of a quantized weight, where that is faster than to leave it to the hardware (core/prefetching.hpp). Bytes a
// second of those that a plain loop reads: on a Zen 5 90 to 110 % with it and 35 to 85 % without, on a Zen 4 to the first
// cache 47 to 78 % with it and 68 to 100 % without. To the second one a Zen 4 multiplies q5_k and q6_k from memory in half
// the time that it takes without; half as far ahead is 8 % faster for q4_k within a forward pass, and a tenth slower for
// those. From the last cache it is never slower.
constexpr int64_t kSliceBytesAhead = 12 << 10;
// Calls that are timed with each choice of what and where to prefetch (core/prefetching.hpp).
constexpr int kTrialsOfEach = 16;
// Keys and values of a decode. From memory 8 to 16 KB are alike, 4 KB and 32 KB slower.
constexpr int64_t kKeyBytesAhead = 8 << 10;
constexpr int64_t kMostKeysAhead = 64;
// What comes next in a forward pass, by workers that wait: so much as may lie in a second cache. A Zen 4 drops what is
// prefetched faster than memory gives it: of 512 KB in one burst four fifths, of pieces this far apart none. (28 November
// 2026: a layer's products of one row then take 3 to 5 % less. One piece each 20 to 70 ns is alike.)
constexpr int64_t kErrandBytes = 512 << 10, kErrandPiece = 1 << 10, kErrandNanoseconds = 40;
// A softmax's input. From memory, 4096 rows: 1.5 times as fast as without; 4, 12 and 16 KB were behind it.
constexpr uintptr_t kSoftmaxBytesAhead = 8 << 10;
// Rows of softmax's gradient are prefetched one ahead up to so many bytes. From the last cache of a Zen 3, two threads:
// of 4 KB, after which the hardware's prefetchers stop, 1.1 times as fast; of 32 KB 0.94 times.
constexpr int64_t kMostBytesAhead = 8 << 10;
// RoPE's input, where the output goes past the caches: 1.3 times as fast as without.
constexpr int64_t kRopeBytesAhead = 4 << 10;

// ---- linear -----------------------------------------------------------------------------------------------

// Up to this many rows of x, plain weights are read in place, as dot products.
constexpr int64_t kDirectRows = 64;
// Rows of a work item at most: it stays within about 30 ms.
constexpr int64_t kItemRows = 528;
// Rows and elements of x that are taken at a time, within about 32 MB of scratch.
constexpr int64_t kFewestBlockRows = 24, kBlockElements = int64_t{8} << 20;
// Work items that a product is cut into, of at least this many rows: 64 texts at once on four threads are 3 to 6 %
// faster than with 32 items.
constexpr int64_t kLinearItems = 64, kFewestItemRows = 32;

// Terms of a partial sum of a gradient: 1.03 to 1.06 times as fast as those of the forward (a Zen 3, float32), with an
// error of 1.13 to 1.2 times PyTorch's; 512 are another 1 to 4 % faster, with 1.5 to 1.7 times its error. Where pairs of
// bfloat16 are multiplied: 1.03 to 1.08 times as fast (one thread of a Zen 4, 512 rows), and no slower than 256 or 1024.
constexpr int64_t kGradientTerms = 256, kPairTerms = 512;
// Rows of a matrix that pack_columns takes at a time, which are its work items; even, for pairs of bfloat16. So many are
// read side by side: 8 are packed as fast as they can be copied, 32 in 1.3 times that time (a Zen 3).
constexpr int64_t kPackedDepth = 8;

// ---- attention --------------------------------------------------------------------------------------------

constexpr int64_t kStripRows = 24;   // rows that pass through scores, softmax and sum together
constexpr int64_t kDecodeRows = 16;  // a head of at most this many rows reads its keys in place: decode
// Keys whose values all tiles of a decode pass over before the next ones: they stay in the first cache beside what
// is prefetched.
constexpr int64_t kValueKeys = 16;
// Bytes that the threads share at a time: they should stay in the last cache.
constexpr int64_t kAttentionBytes = int64_t{16} << 20;
// Products of a work item: about 10 ms on one core with SSE2.
constexpr int64_t kItemTerms = int64_t{1} << 27;
// Rows of a block, and of one that packs its keys for itself: packing then takes a fortieth of the time of its
// products, and what it works on fits the second cache. (Both at D = Dv = 128.)
constexpr int64_t kMostBlockRows = 128, kFewestAttentionRows = 32, kOwnRows = 256;
// Blocks to share out, where there are enough rows.
constexpr int64_t kAttentionItems = 16;
// Backward: keys of a block, and the rows that pass it together, whole panels. Sums are loaded and stored half as often
// as with 64 rows: 4 to 10 % (a Zen 3).
constexpr int64_t kBackwardKeys = 128, kBackwardRows = 128;
// Backward: products of scores of a work item (the other four come on top), and bytes of d_query that parts of the keys
// hold by themselves at a time.
constexpr int64_t kBackwardTerms = int64_t{1} << 30, kBackwardBytes = int64_t{64} << 20;
// Nanoseconds of one core from which on a segment is worth all threads.
constexpr double kLargeSegment = 200000;

// ---- how work is cut --------------------------------------------------------------------------------------

// What one core needs, in nanoseconds and roughly: within a factor of four on the machines that we know.
namespace cost {
constexpr double element = 20000.0 / 32768;  // of row-wise work: read, computed, written
constexpr double angle = 16 * element;       // its cos and sin in float64
constexpr double product = 1.0 / 50;         // multiplied and added, in a matrix product
constexpr double byte = 1.0 / 20;            // read from memory
}  // namespace cost

// Nanoseconds of a chunk: worth waking a thread for, and far below the 50 ms that Ctrl-C may wait.
constexpr double kChunkNanoseconds = 20000;
// Up to this many rows rms_norm reads a weight of 16 bits as it is: to widen it first costs what that saves in five
// rows (bfloat16, 4096 columns).
constexpr int64_t kFewNormRows = 4;
// Where a row may be cut, into pieces of this many elements.
constexpr int64_t kSegment = 16384;

}  // namespace simdformer
