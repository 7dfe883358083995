// Tests how attention's gradients are cut into slices, and its keys into parts that ranks exchange.
#include <doctest/doctest.h>

#include <array>
#include <vector>

#include "engine/ops/attention/grad_workspace.h"
#include "engine/ops/attention/key_exchange.h"
#include "engine/ops/attention/one_pass_schedule_cuda.cuh"
#include "engine/ops/op_def.h"

namespace trainctl {
namespace {

bool all(const AttentionSlice&) { return true; }
bool none(const AttentionSlice&) { return false; }

}  // namespace

TEST_CASE("heads that are the same distance apart go to cuDNN in one call") {
  const AttentionSize n{.b = 16, .t = 64, .s = 64, .g = 8, .r = 4, .d = 64, .e = 64};
  CHECK(largest_slice(n, true, all).calls(n) == 1);
}

TEST_CASE("grouped queries packed for each kv head go to cuDNN in as few calls as strides can describe") {
  AttentionSize n{.b = 16, .t = 64, .s = 64, .g = 8, .r = 4, .d = 64, .e = 64};
  CHECK(largest_slice(n, false, all).calls(n) == 8);
  CHECK(!largest_slice(n, false, all).heads_as_samples);
  n.b = 2;
  CHECK(largest_slice(n, false, all).calls(n) == 2);
  CHECK(largest_slice(n, false, all).heads_as_samples);
  n.b = 1;
  CHECK(largest_slice(n, false, all).calls(n) == 1);
}

TEST_CASE("a gradient's slices stay below the limit, and cover all samples and heads") {
  for (const int64_t t : {128, 1000, 4096}) {
    for (const int64_t b : {1, 6, 16}) {
      for (const bool uniform : {false, true}) {
        const AttentionSize n{.b = b, .t = t, .s = t, .g = 6, .r = 2, .d = 64, .e = 64};
        const AttentionSlice slice = grad_slice(n, uniform);
        REQUIRE(slice.b > 0);
        CHECK(grad_workspace(n, slice) <= kMostGradWorkspace);
        CHECK(n.b % slice.b == 0);
        CHECK(n.g % slice.g == 0);
        const AttentionSlice of_queries = query_slice(n);
        REQUIRE(of_queries.b > 0);
        CHECK(parts_and_workspace(n, of_queries) <= kMostGradWorkspace);
        CHECK((uniform || slice.g == 1 || (slice.heads_as_samples && slice.b == 1)));
      }
    }
  }
}

TEST_CASE("the gradient in one pass covers all kv heads, in launches whose sums stay below the limit") {
  for (const int64_t b : {1, 3, 8}) {
    for (const int64_t t : {1, 4096, 8192}) {
      for (const int64_t r : {1, 4, 6}) {
        for (const bool causal : {false, true}) {
          const int64_t d = b == 3 ? 64 : 128;
          const AttentionSize n{.b = b, .t = t, .s = t, .g = 8, .r = r, .d = d, .e = d};
          REQUIRE(one_pass_takes(n));
          const OnePassMemory memory(n, causal);
          CHECK(memory.launches() * memory.groups >= n.b * n.g);
          CHECK((memory.parts > 1 || memory.sums_bytes() == memory.groups * r * memory.tiles * 64 * d * 4));
          CHECK((memory.launches() - 1) * memory.groups < n.b * n.g);
          CHECK((memory.groups == 1 || memory.sums_bytes() <= kMostGradWorkspace));
          CHECK(n.r % memory.parts == 0);
          CHECK(memory.bytes() >= memory.rows_bytes() + memory.counters_bytes() + memory.sums_bytes());
        }
      }
    }
  }
}

TEST_CASE("the gradient in one pass takes sequences of up to 524,288 rows, and keeps multiprocessors busy") {
  for (const int64_t t : {65536, 131072, 262144, 524288}) {
    for (const int64_t r : {1, 4}) {
      const AttentionSize n{.b = 1, .t = t, .s = t, .g = 8, .r = r, .d = 128, .e = 128};
      REQUIRE(one_pass_takes(n));
      const OnePassMemory memory(n, true);
      CHECK(memory.groups * memory.parts * memory.columns > 66);
      CHECK(memory.launches() * memory.groups >= 8);
      CHECK(memory.bytes() <= kMostOnePass);
    }
  }
  CHECK_FALSE(one_pass_takes({.b = 1, .t = 64, .s = 524289, .g = 8, .r = 4, .d = 128, .e = 128}));
  CHECK_FALSE(one_pass_takes({.b = 1, .t = 524288, .s = 524288, .g = 1, .r = 32, .d = 128, .e = 128}));
}

namespace {

/// Simulates the blocks of threads of one kv head: each executes its steps in order, and waits for its turn at each
/// tile. Returns whether all of them end.
bool ends(const attention::OnePassSchedule& schedule, const std::vector<attention::Step>& steps) {
  struct Position {
    int pass = 0, step = 0;
  };
  std::vector<Position> at(static_cast<size_t>(schedule.columns));
  std::vector<int> turns(static_cast<size_t>(schedule.heads * schedule.tiles));
  const auto advance = [&](int column) {
    Position& p = at[static_cast<size_t>(column)];
    for (; p.pass < schedule.passes(); ++p.pass, p.step = 0) {
      const int block = schedule.block(column, p.pass);
      if (block >= schedule.blocks) return false;
      if (p.step == schedule.steps(block)) continue;
      const attention::Step& step = steps[static_cast<size_t>(schedule.steps_at(column, p.pass) + p.step)];
      int& turn = turns[static_cast<size_t>(p.step / schedule.count(block) * schedule.tiles + step.tile)];
      if (turn != step.turn) return false;
      ++turn, ++p.step;
      return true;
    }
    return false;
  };
  for (bool moves = true; moves;) {
    moves = false;
    for (int column = 0; column < schedule.columns; ++column)
      while (advance(column)) moves = true;
  }
  int64_t done = 0, all = 0;
  for (const int turn : turns) done += turn;
  for (int block = 0; block < schedule.blocks; ++block) all += schedule.steps(block);
  return done == all;
}

}  // namespace

namespace {

using attention::OnePassSchedule;

/// The schedules for each size, mask and window.
std::vector<OnePassSchedule> schedules() {
  std::vector<OnePassSchedule> found;
  for (const auto& [t, s, first_row] : std::vector<std::array<int64_t, 3>>{{64, 128, 0},
                                                                           {1000, 1000, 0},
                                                                           {513, 2048, 1535},
                                                                           {2048, 513, 0},
                                                                           {8192, 8192, 0},
                                                                           {4096, 16384, 8192},
                                                                           {65, 30000, 40000}}) {
    for (const bool causal : {false, true}) {
      for (const int window : {0, 1, 64, 100, 129, 5000}) {
        if (window > 0 && (!causal || first_row + t > s)) continue;
        const AttentionSize n{.b = 1, .t = t, .s = s, .g = 2, .r = 3, .d = 128, .e = 128};
        const OnePassMemory memory(n, causal);
        found.push_back({static_cast<int>(memory.tiles), static_cast<int>(memory.blocks),
                         static_cast<int>(memory.columns), static_cast<int>(first_row), causal,
                         static_cast<int>(n.r / memory.parts), window});
      }
    }
  }
  return found;
}

}  // namespace

TEST_CASE("a schedule has a step for each pair of a tile and a block that see each other, and no other") {
  for (const OnePassSchedule& schedule : schedules()) {
    int wrong = 0;
    for (int tile = 0; tile < schedule.tiles; ++tile) {
      const int row = schedule.first_row + tile * kOnePassRows, last_row = row + kOnePassRows - 1;
      for (int block = 0; block < schedule.blocks; ++block) {
        const int key = block * kOnePassKeys, last_key = key + kOnePassKeys - 1;
        const bool sees =
            !schedule.causal || (key <= last_row && (schedule.window == 0 || last_key + schedule.window > row));
        const bool hides = schedule.window > 0 && key + schedule.window <= last_row;
        wrong += sees != (block >= schedule.first_seen(tile) && block < schedule.seen_end(tile));
        wrong += sees != (tile >= schedule.first(block) && tile < schedule.end(block));
        wrong += sees && hides != (tile >= schedule.hides_from(block));
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("a tile needs no mask for a block if each of its queries sees each key of the block") {
  for (const OnePassSchedule& schedule : schedules()) {
    const int keys = schedule.blocks * kOnePassKeys - 5;
    int wrong = 0;
    for (int block = 0; block < schedule.blocks; ++block) {
      for (int tile = schedule.first(block); tile < schedule.end(block); ++tile) {
        bool all = true;
        for (const int row : {tile * kOnePassRows, (tile + 1) * kOnePassRows - 1}) {
          for (const int key : {block * kOnePassKeys, (block + 1) * kOnePassKeys - 1}) {
            const int behind = schedule.first_row + row - key;
            all = all && key < keys && (!schedule.causal || behind >= 0) &&
                  (schedule.window == 0 || behind < schedule.window);
          }
        }
        wrong += schedule.hides(block, tile, keys) == all;
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("blocks of keys never wait for each other in a circle") {
  for (const OnePassSchedule& schedule : schedules()) {
    std::vector<attention::Step> steps(static_cast<size_t>(schedule.steps_at(schedule.columns, 0)), {-1, -1});
    int taken = 0;
    for (int head = 0; head < schedule.heads; ++head) {
      for (int tile = 0; tile < schedule.tiles; ++tile) {
        const int first = schedule.first_seen(tile), count = schedule.seen_end(tile) - first;
        std::vector<int> times;
        for (int i = 0; i < count; ++i) times.push_back(schedule.time(first + i, head, tile));
        for (int i = 0; i < count; ++i) {
          attention::Step& step = steps.at(static_cast<size_t>(schedule.step_at(first + i, head, tile)));
          taken += step.tile >= 0;
          step = {tile, OnePassSchedule::turn(times.data(), count, i)};
        }
      }
    }
    CHECK(taken == 0);  // no two steps have one place
    CHECK(ends(schedule, steps));
  }
}

TEST_CASE("few query heads are divided among multiprocessors") {
  const AttentionSize all{.b = 1, .t = 8192, .s = 8192, .g = 8, .r = 4, .d = 128, .e = 128};
  CHECK(OnePassMemory(all, true).parts == 1);
  AttentionSize few = all;
  few.g = 2;
  CHECK(OnePassMemory(few, true).parts == 2);
  few.t = few.s = 2048;
  CHECK(OnePassMemory(few, true).parts == 4);
}

TEST_CASE("slopes of scores have a place for each pair of tiles that see each other, and no other") {
  for (const bool causal : {false, true}) {
    for (const int64_t t : {1, 64, 130, 517}) {
      for (const int64_t s : {40, 130, 517, 700}) {
        for (const int64_t first_row : {0, 1, 64, 200}) {
          const SlopeTiles tiles({.b = 1, .t = t, .s = s, .g = 1, .r = 1, .d = 256, .e = 256}, causal, first_row);
          int64_t count = 0;
          for (int tile = 0; tile < tiles.query_tiles; ++tile) {
            CHECK(tiles.before(tile) == count);
            for (int key_tile = 0; key_tile < tiles.key_tiles; ++key_tile)
              count += !causal || 64 * key_tile <= first_row + 64 * tile + 63;
          }
          CHECK(tiles.all() == count);
        }
      }
    }
  }
}

TEST_CASE("the gradient of wide heads stays below its limit, or refuses what does not fit") {
  AttentionSize n{.b = 1, .t = 8192, .s = 8192, .g = 4, .r = 2, .d = 256, .e = 256};
  REQUIRE(wide_takes(n));
  CHECK(WideMemory(n, true, 0).groups == 2);
  CHECK(WideMemory(n, true, 0).bytes() <= WideMemory::most_bytes(n));
  CHECK(WideMemory(n, false, 0).groups == 1);
  n.t = n.s = 32768;
  CHECK(WideMemory(n, false, 0).groups == 0);
}

TEST_CASE("slices become smaller until there is none") {
  const AttentionSize n{.b = 4, .t = 64, .s = 64, .g = 3, .r = 1, .d = 64, .e = 64};
  int64_t calls = 0, slices = 0;
  for (AttentionSlice slice{n.b, n.g}; slice.b > 0; slice = smaller(n, slice)) {
    CHECK(slice.calls(n) > calls);
    calls = slice.calls(n);
    ++slices;
  }
  CHECK(slices == 4);
  CHECK(calls == 12);
  CHECK(largest_slice(n, true, none).b == 0);
  CHECK(largest_slice(n, false, none).b == 0);
}

TEST_CASE("cut rows of causal attention cost what the rank with the last rows computes, balanced rows the mean") {
  const KernelDef& kernel = get_op("attention").kernel;
  constexpr int64_t kRows = 1024, kRanks = 4;
  const auto scores = [&](int64_t rows, int64_t window, bool exchanges) {
    const TensorInfo q{{1, rows, 64}}, keys{{1, kRows, 64}};
    Attrs attrs = {{"head_dim", int64_t{64}}, {"causal", true}, {"scale", 0.125}};
    if (window > 0) attrs.set("window", window);
    if (exchanges) attrs.set(kExchangesKeys, true);
    const std::vector<TensorInfo> in = {q, keys, keys}, out = {q, TensorInfo{{1, 1, 1, rows}}};
    return kernel_cost(kernel, in, out, attrs).exponentials;
  };
  const double whole = scores(kRows, 0, false);
  CHECK(whole == doctest::Approx(kRows * kRows / 2.0));
  CHECK(scores(kRows / kRanks, 0, false) == doctest::Approx(whole / kRanks * (2 - 1.0 / kRanks)));
  CHECK(scores(kRows / kRanks, 0, true) == doctest::Approx(whole / kRanks));
  CHECK(scores(kRows / kRanks, 16, false) == doctest::Approx(16.0 * kRows / kRanks));  // each row sees its window
}

}  // namespace trainctl
