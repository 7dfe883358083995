// Chooses the order of a sample's documents if ranks share its rows (ops/row_order.h).
#include "engine/train/data/document_order.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

namespace trainctl {
namespace {

constexpr int kMostTrials = 300;
constexpr int64_t kEnough = 50;  ///< The search ends when the largest work of a rank exceeds the mean by at most a
                                 ///< 50th.

/// The number of keys that the first `rows` rows of a document attend to.
constexpr int64_t keys_of(int64_t rows) { return rows * (rows + 1) / 2; }

/// Adds the work of a document that begins at row `begin` to the work of each rank.
void add_work(int64_t begin, int64_t rows, const RowOrder& order, std::vector<int64_t>& work) {
  for (int64_t at = begin, end = begin + rows; at < end;) {
    const int64_t next = std::min(end, (at / order.piece + 1) * order.piece);
    work[static_cast<size_t>(order.rank_of(at))] += keys_of(next - begin) - keys_of(at - begin);
    at = next;
  }
}

/// Changes an order of documents step by step, as long as the work becomes more even.
class Balancing {
 public:
  Balancing(std::span<const int64_t> lengths, const RowOrder& order)
      : lengths_(lengths), order_(order), work_(static_cast<size_t>(order.ranks)), documents_(lengths.size()) {
    std::iota(documents_.begin(), documents_.end(), 0);
  }

  std::vector<int32_t> run() {
    Unevenness best = measure();
    for (int trial = 0; trial < kMostTrials && !is_even(best) && documents_.size() > 1; ++trial) {
      const size_t a = draw(), b = draw();
      const bool swaps = random() % 2 == 0;
      change(a, b, swaps);
      const Unevenness now = measure();
      if (now < best)
        best = now;
      else
        swaps ? change(a, b, true) : change(b, a, false);
    }
    return std::move(documents_);
  }

 private:
  /// The largest work of a rank, then the sum of the differences from the mean. A smaller pair is more even.
  using Unevenness = std::pair<int64_t, int64_t>;

  Unevenness measure() {
    std::fill(work_.begin(), work_.end(), 0);
    int64_t at = 0;
    for (const int32_t document : documents_) {
      const int64_t rows = lengths_[static_cast<size_t>(document)];
      add_work(at, rows, order_, work_);
      at += rows;
    }
    mean_ = std::accumulate(work_.begin(), work_.end(), int64_t{0}) / static_cast<int64_t>(work_.size());
    int64_t differences = 0;
    for (const int64_t work : work_) differences += std::abs(work - mean_);
    return {*std::max_element(work_.begin(), work_.end()), differences};
  }
  bool is_even(const Unevenness& now) const { return now.first - mean_ <= mean_ / kEnough; }

  /// Swaps two documents, or moves the one at `from` to `to`.
  void change(size_t from, size_t to, bool swaps) {
    const auto at = [&](size_t i) { return documents_.begin() + static_cast<std::ptrdiff_t>(i); };
    if (swaps)
      std::swap(documents_[from], documents_[to]);
    else if (from < to)
      std::rotate(at(from), at(from + 1), at(to + 1));
    else
      std::rotate(at(to), at(from), at(from + 1));
  }

  /// Returns the next number of a linear congruential generator with a fixed seed.
  uint32_t random() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 33);
  }
  size_t draw() { return random() % documents_.size(); }

  const std::span<const int64_t> lengths_;
  const RowOrder order_;
  std::vector<int64_t> work_;  ///< by rank
  int64_t mean_ = 0;
  std::vector<int32_t> documents_;
  uint64_t state_ = 1;
};

}  // namespace

std::vector<int64_t> work_of_ranks(std::span<const int64_t> lengths, const RowOrder& order) {
  std::vector<int64_t> work(static_cast<size_t>(order.ranks));
  int64_t at = 0;
  for (const int64_t rows : lengths) {
    add_work(at, rows, order, work);
    at += rows;
  }
  return work;
}

std::vector<int32_t> balanced_documents(std::span<const int64_t> lengths, const RowOrder& order) {
  return Balancing(lengths, order).run();
}

DocumentOrder::DocumentOrder(std::span<const int32_t> documents, const RowOrder& order) {
  std::vector<int64_t> begins, lengths;
  bool are_starts = true;
  for (size_t row = 0; row < documents.size(); ++row) {
    if (row == 0 || documents[row] != documents[row - 1]) {
      are_starts = are_starts && documents[row] == static_cast<int32_t>(row);
      begins.push_back(static_cast<int64_t>(row));
      lengths.push_back(0);
    }
    ++lengths.back();
  }
  if (!are_starts) return;  // The values are not the positions of documents: random data.
  int64_t at = 0;
  for (const int32_t document : balanced_documents(lengths, order)) {
    const auto d = static_cast<size_t>(document);
    documents_.push_back({begins[d], at, lengths[d]});
    at += lengths[d];
  }
}

void DocumentOrder::permute(std::byte* rows, int64_t row_bytes, std::byte* scratch) const {
  int64_t bytes = 0;
  for (const Moved& d : documents_) {
    std::memcpy(scratch + d.to * row_bytes, rows + d.from * row_bytes, static_cast<size_t>(d.rows * row_bytes));
    bytes += d.rows * row_bytes;
  }
  std::memcpy(rows, scratch, static_cast<size_t>(bytes));
}

void DocumentOrder::permute_documents(std::span<int32_t> documents) const {
  for (const Moved& d : documents_) std::fill_n(documents.begin() + d.to, d.rows, static_cast<int32_t>(d.to));
}

}  // namespace trainctl
