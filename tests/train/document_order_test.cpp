// Tests of the order of documents whose rows ranks share (engine/train/data/document_order.h).
#include "engine/train/data/document_order.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <utility>

using namespace trainctl;

namespace {

constexpr int64_t kOrderedRows = 16384;

RowOrder row_order(int64_t ranks, int64_t groups) {
  return RowOrder::of({{kRowOrder, ranks}, {kRowGroups, groups}}, kOrderedRows);
}

/// Random lengths of documents that add up to kOrderedRows.
std::vector<int64_t> lengths(const std::function<double()>& draw) {
  std::vector<int64_t> all;
  for (int64_t left = kOrderedRows; left > 0; left -= all.back())
    all.push_back(std::clamp<int64_t>(static_cast<int64_t>(draw()), 1, left));
  return all;
}

/// The work of the busiest rank, divided by the mean.
double imbalance(const std::vector<int64_t>& documents, const RowOrder& order) {
  const std::vector<int64_t> work = work_of_ranks(documents, order);
  const auto sum = static_cast<double>(std::accumulate(work.begin(), work.end(), int64_t{0}));
  return static_cast<double>(*std::max_element(work.begin(), work.end())) * static_cast<double>(work.size()) / sum;
}

std::vector<int64_t> balanced(const std::vector<int64_t>& documents, const RowOrder& order) {
  std::vector<int64_t> result;
  for (const int32_t d : balanced_documents(documents, order)) result.push_back(documents[static_cast<size_t>(d)]);
  return result;
}

}  // namespace

TEST_CASE("each rank has as many rows, and each position one rank, for any number of ranks and groups") {
  for (const int64_t ranks : {2, 4, 8})
    for (const int64_t groups : {1, 2, 4}) {
      const RowOrder order = row_order(ranks, groups);
      std::vector<int64_t> rows(static_cast<size_t>(ranks));
      std::vector<bool> taken(kOrderedRows);
      for (int64_t index = 0; index < kOrderedRows; ++index) {
        const int64_t position = order.position(index);
        CHECK_FALSE(taken[static_cast<size_t>(position)]);
        taken[static_cast<size_t>(position)] = true;
        CHECK(order.rank_of(position) == index / (kOrderedRows / ranks));
        ++rows[static_cast<size_t>(order.rank_of(position))];
      }
      for (const int64_t count : rows) CHECK(count == kOrderedRows / ranks);
    }
}

TEST_CASE("the work of ranks is the number of keys that their rows see") {
  const RowOrder order = row_order(4, 2);
  const std::vector<int64_t> documents = {5000, 300, 84, 7000, 4000};
  std::vector<int64_t> counted(4);
  int64_t begin = 0;
  for (const int64_t rows : documents) {
    for (int64_t row = 0; row < rows; ++row) counted[static_cast<size_t>(order.rank_of(begin + row))] += row + 1;
    begin += rows;
  }
  CHECK(work_of_ranks(documents, order) == counted);
}

TEST_CASE("documents of any lengths are ordered such that all ranks have about the same work") {
  std::mt19937 random(7);
  std::lognormal_distribution<double> mixed(5.5, 1.2);
  std::uniform_int_distribution<int64_t> few(20, 200), middle(500, 3000);
  double worst_in_pieces = 0, worst = 0;
  for (const int64_t ranks : {2, 4, 8})
    for (int round = 0; round < 8; ++round)
      for (int kind = 0; kind < 4; ++kind) {
        bool is_first = true;
        const std::vector<int64_t> documents = lengths([&]() -> double {
          const bool first = std::exchange(is_first, false);
          if (kind == 0) return static_cast<double>(few(random));
          if (kind == 1) return static_cast<double>(middle(random));
          if (kind == 2) return mixed(random);
          return first ? kOrderedRows / 2.0 : static_cast<double>(few(random));
        });
        const RowOrder order = row_order(ranks, 4);
        worst_in_pieces = std::max(worst_in_pieces, imbalance(documents, row_order(ranks, 1)));
        worst = std::max(worst, imbalance(balanced(documents, order), order));
      }
  MESSAGE("most work of a rank over the mean: ", worst, ", with two pieces per rank and in the order of the data ",
          worst_in_pieces);
  CHECK(worst < 1.2);
  CHECK(worst_in_pieces > 2);
}

TEST_CASE("one document is as balanced as a sequence without documents") {
  for (const int64_t groups : {1, 4})
    CHECK(imbalance({kOrderedRows}, row_order(8, groups)) == doctest::Approx(1).epsilon(0.001));
}

TEST_CASE("rows move with their documents, whose first rows are renumbered") {
  const RowOrder order = RowOrder::of({{kRowOrder, int64_t{2}}, {kRowGroups, int64_t{1}}}, 16);
  const std::vector<int32_t> before = {0, 0, 0, 0, 0, 0, 0, 0, 8, 9, 10, 11, 12, 13, 14, 15};
  std::vector<int32_t> documents = before, tokens(16), scratch(16);
  std::iota(tokens.begin(), tokens.end(), 100);
  const DocumentOrder moved(documents, order);
  moved.permute(reinterpret_cast<std::byte*>(tokens.data()), 4, reinterpret_cast<std::byte*>(scratch.data()));
  moved.permute_documents(documents);
  CHECK(tokens != std::vector<int32_t>{100, 101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111, 112, 113, 114, 115});
  for (size_t row = 0; row < 16; ++row) {
    CHECK(documents[row] <= static_cast<int32_t>(row));
    const auto old = static_cast<size_t>(tokens[row] - 100);
    CHECK(static_cast<int32_t>(row) - documents[row] == static_cast<int32_t>(old) - before[old]);
  }
}

TEST_CASE("rows keep their order if the field does not have the first rows of documents") {
  const RowOrder order = RowOrder::of({{kRowOrder, int64_t{2}}}, 8);
  std::vector<int32_t> documents = {3, 3, 1, 1, 0, 5, 5, 2}, tokens = {0, 1, 2, 3, 4, 5, 6, 7}, scratch(8);
  const std::vector<int32_t> documents_before = documents, tokens_before = tokens;
  const DocumentOrder moved(documents, order);
  moved.permute(reinterpret_cast<std::byte*>(tokens.data()), 4, reinterpret_cast<std::byte*>(scratch.data()));
  moved.permute_documents(documents);
  CHECK(tokens == tokens_before);
  CHECK(documents == documents_before);
}
