// What a chain of layers is made of, and where its rows and weights lie in a block's shared memory: row_chain_cuda.cu
// tells how it works.
//
//   mbarriers | warps' sums | rows sent, two places | rows kept, a place a link | slabs | the ring of weights
#pragma once

#include "engine/base/round_up.h"
#include "engine/ops/small_step/row_losses_cuda.cuh"
#include "engine/ops/small_step/tile_copies_cuda.cuh"

namespace trainctl::cuda {

constexpr int kWarps = 8, kWorkers = 32 * kWarps;       ///< that multiply
constexpr int kBringers = 2;                            ///< more warps, which bring the weights of deep layers
constexpr int kFetchers = 2;                            ///< and all other weights
constexpr int kThreads = kWorkers + 32 * (kBringers + kFetchers);
constexpr int kRows = kWarps;  ///< of a cluster: each warp finishes a row
constexpr int kCols = 32;      ///< of a tile: each lane finishes a column
constexpr int kMostLinks = 16;
constexpr int kMostBlocks = 16;  ///< of a cluster, else half of them
constexpr int kMostClasses = 128;
constexpr int kMostStages = 6;  ///< of the ring: places for a tile of weights for each warp
constexpr int kMostLeft = 3;    ///< tiles of k that all warps share
constexpr int kFew = 4;         ///< columns of a last layer that every block makes by itself

constexpr int kRowTile = kRows * kCols;     ///< floats of a tile of rows
constexpr int kWeightTile = kCols * kCols;  ///< and of weights
constexpr int kPacks = kCols / 4;           ///< of 16 bytes, of a line of a tile
constexpr int kSumsPitch = kCols + 8;       ///< free of bank conflicts where lanes write packs of 4 rows

// Where shared memory has what every chain has, in floats.
constexpr int kResultsCame = 0, kRowsCame = 2 * kMostLinks;  ///< mbarriers, two floats each
constexpr int kSlabsCame = kRowsCame + 2;
constexpr int kTilesCame = kSlabsCame + 2;  ///< a stage's tiles: one for each warp
constexpr int kStagesTaken = kTilesCame + 2 * kWarps * kMostStages;
constexpr int kLossesCame = kStagesTaken + 2 * kMostStages;
constexpr int kLosses = kLossesCame + 2;  ///< a double of each thread
constexpr int kSums = static_cast<int>(round_up(kLosses + 2 * kWorkers, 4));
constexpr int kSumsOfWarp = kRows * kSumsPitch;
constexpr int kStage = kWarps * kWeightTile;
constexpr int kTileAligned = 8 * kTileFloats;  ///< where the copy engine brings tiles
constexpr int kFirstPlace = static_cast<int>(round_up(kSums + kWarps * kSumsOfWarp, kTileAligned));

enum class Form : uint8_t {
  deep,        ///< wide, and more than 32 of k: the warps share k
  in_parts,    ///< no more than 32 columns, more of k: each block makes a part of each sum
  few,         ///< no more than kFew columns: each block makes all, from whole rows
  shallow,     ///< no more than 32 of k
  everywhere,  ///< back from few columns: each block makes all, so that none waits for another
  loss,
};

struct Link {
  LossKind kind = LossKind::none;  ///< none: a product
  bool along = false;  ///< weights are [n,k], else [k,n]
  bool relu = false;
  bool add_to_loss = false;
  int k = 0, n = 0;
  const float* x = nullptr;            ///< [rows,k]; a loss's predictions [rows,n]
  const float* w = nullptr;            ///< a loss's labels
  const float* bias = nullptr;         ///< [n]
  const float* relu_result = nullptr;  ///< [rows,n]: times relu's slope
  float* y = nullptr;                  ///< [rows,n]; a loss's gradient
  float* loss = nullptr;               ///< [1]
  double scale = 1;

  Form form = Form::loss;
  bool wide = false;  ///< more than 32 columns: each block makes some of the tiles
  int tiles = 0;      ///< of columns
  int depth = 0;      ///< tiles of k

  // Where in shared memory, in floats; -1: nowhere.
  int rows = 0;            ///< what it takes
  bool whole_rows = true;  ///< all tiles, else only the block's own
  int sent = -1;           ///< for its results, or parts of sums, from all blocks of the cluster
  int sent_pitch = 0;      ///< of a row of parts: whole packs
  int kept = -1;           ///< for the tiles of its results that this block makes
  int slope = -1;          ///< the kept results that `relu_result` has in memory
  int slabs = -1;          ///< the block's tiles of weights, where it is not deep; few, everywhere: all weights
};

struct Chain {
  TileMap tiles[kMostLinks];  ///< of the weights of deep layers
  Link links[kMostLinks];
  int count = 0;
  int deep_count = 0;
  uint8_t deep[kMostLinks];  ///< which links are
  int loss = -1;                 ///< which link; -1: none
  int rows = 0, of_cluster = 0;  ///< of the batch; of each cluster
  int blocks = 1;                ///< of a cluster: 16 or 8
  bool packs = false;            ///< the first rows are whole packs
  int weights = 0, stages = 0;   ///< where in shared memory the ring of weights is, and how long
  double* loss_parts = nullptr;  ///< one a cluster
  unsigned* ticket = nullptr;
};

/// What a thread works on.
struct Place {
  float* shared;
  int block, blocks;  ///< of the cluster
  int row0, rows;     ///< of the batch, for the cluster
  int row, lane;      ///< the warp's row, the lane's column of a tile
};

/// A number of a tile, where the copy engine brings it: lanes read packs of 8 lines without bank conflicts.
__device__ __forceinline__ int place_in_tile(int line, int col) { return line * kCols + (col ^ line % 8 * 4); }
__device__ __forceinline__ int place_in_rows(int row, int col) { return row * kCols + (col ^ row * 4); }

/// The warps that multiply.
__device__ __forceinline__ void meet_workers() { asm volatile("bar.sync 1, %0;" ::"n"(kWorkers) : "memory"); }

}  // namespace trainctl::cuda
