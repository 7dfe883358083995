// The data structures of a chain of layers and the layout of a block's shared memory; row_chain_cuda.cu explains the
// algorithm.
//
//   mbarriers | warps' sums | received rows, two buffers | kept rows, a buffer per link | slabs | the ring of weights
#pragma once

#include "engine/base/round_up.h"
#include "engine/ops/small_step/row_losses_cuda.cuh"
#include "engine/ops/small_step/tile_copies_cuda.cuh"

namespace trainctl::cuda {

constexpr int kWarps = 8, kWorkers = 32 * kWarps;  ///< warps, and threads, that multiply
constexpr int kBringers = 2;                       ///< warps that load the weights of deep layers
constexpr int kFetchers = 2;                       ///< warps that load all other weights
constexpr int kThreads = kWorkers + 32 * (kBringers + kFetchers);
constexpr int kRows = kWarps;  ///< rows per cluster: each warp finishes one
constexpr int kCols = 32;      ///< columns per tile: each lane finishes one
constexpr int kMostLinks = 16;
constexpr int kMostBlocks = 16;  ///< blocks per cluster, which has 16 or 8
constexpr int kMostClasses = 128;
constexpr int kMostStages = 6;  ///< stages of the ring; a stage holds a tile of weights for each warp
constexpr int kMostLeft = 3;    ///< remaining tiles of k that all warps work on together
constexpr int kFew = 4;         ///< most columns of a last layer that every block computes redundantly

constexpr int kRowTile = kRows * kCols;     ///< floats of a tile of rows
constexpr int kWeightTile = kCols * kCols;  ///< floats of a tile of weights
constexpr int kPacks = kCols / 4;           ///< packs of 16 bytes in a line of a tile
constexpr int kSumsPitch = kCols + 8;       ///< no bank conflicts when lanes write packs of 4 rows

// Offsets in shared memory that are the same in every chain, in floats.
constexpr int kResultsCame = 0, kRowsCame = 2 * kMostLinks;  ///< mbarriers, two floats each
constexpr int kSlabsCame = kRowsCame + 2;
constexpr int kTilesCame = kSlabsCame + 2;  ///< for each stage, one per warp
constexpr int kStagesTaken = kTilesCame + 2 * kWarps * kMostStages;
constexpr int kLossesCame = kStagesTaken + 2 * kMostStages;
constexpr int kLosses = kLossesCame + 2;  ///< one double per thread
constexpr int kSums = static_cast<int>(round_up(kLosses + 2 * kWorkers, 4));
constexpr int kSumsOfWarp = kRows * kSumsPitch;
constexpr int kStage = kWarps * kWeightTile;
constexpr int kTileAligned = 8 * kTileFloats;  ///< alignment of tiles that the copy engine writes
constexpr int kFirstPlace = static_cast<int>(round_up(kSums + kWarps * kSumsOfWarp, kTileAligned));

enum class Form : uint8_t {
  deep,        ///< n > 32, k > 32: the warps split k
  in_parts,    ///< n <= 32, k > 32: the blocks split k, each computes a part of every sum
  few,         ///< n <= kFew: each block computes everything, from whole rows
  shallow,     ///< k <= 32
  everywhere,  ///< back from `few`: each block computes everything, so that none waits for another
  loss,
};

struct Link {
  LossKind kind = LossKind::none;  ///< none: a product
  bool along = false;              ///< weights are [n,k], else [k,n]
  bool relu = false;
  bool add_to_loss = false;
  int k = 0, n = 0;
  const float* x = nullptr;            ///< [rows,k]; a loss's predictions [rows,n]
  const float* w = nullptr;            ///< a loss's labels
  const float* bias = nullptr;         ///< [n]
  const float* relu_result = nullptr;  ///< [rows,n]: y is multiplied by relu's slope there
  float* y = nullptr;                  ///< [rows,n]; a loss's gradient
  float* loss = nullptr;               ///< [1]
  double scale = 1;

  Form form = Form::loss;
  bool wide = false;  ///< n > 32: each block computes some of the tiles
  int tiles = 0;      ///< tiles of columns
  int depth = 0;      ///< tiles of k

  // Offsets in shared memory, in floats; -1: none.
  int rows = 0;            ///< its input
  bool whole_rows = true;  ///< the input has all tiles, else only the block's own
  int sent = -1;           ///< results or partial sums, received from all blocks of the cluster
  int sent_pitch = 0;      ///< floats per row of partial sums: whole packs
  int kept = -1;           ///< the tiles of its results that this block computes
  int slope = -1;          ///< the kept copy of `relu_result`
  int slabs = -1;          ///< the block's tiles of weights unless it is deep; few, everywhere: all weights
};

struct Chain {
  TileMap tiles[kMostLinks];  ///< for the weights of deep layers
  Link links[kMostLinks];
  int count = 0;
  int deep_count = 0;
  uint8_t deep[kMostLinks];      ///< indices of the deep links
  int loss = -1;                 ///< index of the loss; -1: none
  int rows = 0, of_cluster = 0;  ///< rows of the batch; rows per cluster
  int blocks = 1;                ///< blocks per cluster: 16 or 8
  bool packs = false;            ///< the first rows are whole packs
  int weights = 0, stages = 0;   ///< the ring of weights: its offset in shared memory, and its length
  double* loss_parts = nullptr;  ///< one per cluster
  unsigned* ticket = nullptr;
};

/// A thread's part of the work.
struct Place {
  float* shared;
  int block, blocks;  ///< index in the cluster, and its size
  int row0, rows;     ///< the cluster's rows of the batch
  int row, lane;      ///< the warp's row, the lane's column of a tile
};

/// Offset of an element in a tile, as the copy engine swizzles it: lanes read packs of 8 lines without bank conflicts.
__device__ __forceinline__ int place_in_tile(int line, int col) { return line * kCols + (col ^ line % 8 * 4); }
__device__ __forceinline__ int place_in_rows(int row, int col) { return row * kCols + (col ^ row * 4); }

/// A barrier of the warps that multiply.
__device__ __forceinline__ void meet_workers() { asm volatile("bar.sync 1, %0;" ::"n"(kWorkers) : "memory"); }

}  // namespace trainctl::cuda
