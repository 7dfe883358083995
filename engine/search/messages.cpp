#include "engine/search/messages.h"

#include <algorithm>
#include <limits>

namespace trainctl {

Messages::Messages(const std::vector<int>& sizes, const PartSum& sum) : sizes_(sizes), links_(sizes.size()) {
  size_t end = 0;
  for (size_t v = 0; v < sizes.size(); ++v) {
    places_.push_back(sum.place(static_cast<int>(v)));
    for (const PartSum::Neighbour& n : sum.around(static_cast<int>(v))) {
      links_[v].push_back({n.variable, n.values, n.beside, end, 0});
      end += static_cast<size_t>(sizes[v]);
    }
  }
  messages_.assign(end, 0);
  for (size_t v = 0; v < sizes.size(); ++v) {
    size_t before = 0, after = 0;
    for (Link& link : links_[v]) {
      ++(link.other < static_cast<int>(v) ? before : after);
      for (const Link& back : links_[static_cast<size_t>(link.other)])
        if (back.values == link.beside) link.out = back.in;
    }
    share_.push_back(1.0 / static_cast<double>(std::max({before, after, size_t{1}})));
  }
}

void Messages::sum_in(size_t v, const std::vector<double>& alone) {
  const auto size = static_cast<size_t>(sizes_[v]);
  const auto from = alone.begin() + static_cast<std::ptrdiff_t>(places_[v]);
  in_.assign(from, from + static_cast<std::ptrdiff_t>(size));
  for (const Link& link : links_[v])
    for (size_t x = 0; x < size; ++x) in_[x] += messages_[link.in + x];
}

/// Its least value is 0 then; what was taken off is returned.
double Messages::send(size_t v, const Link& link, double share) {
  const auto size = static_cast<size_t>(sizes_[v]);
  part_.resize(size);
  for (size_t x = 0; x < size; ++x) part_[x] = share * in_[x] - messages_[link.in + x];
  double* to = &messages_[link.out];
  const auto others = static_cast<size_t>(sizes_[static_cast<size_t>(link.other)]);
  // By rows of the other's values: the least of each is formed side by side.
  std::fill_n(to, others, std::numeric_limits<double>::infinity());
  for (size_t x = 0; x < size; ++x) {
    const double* row = link.beside + x * others;
    const double own = part_[x];
    for (size_t y = 0; y < others; ++y) {
      const double sum = row[y] + own;
      to[y] = sum < to[y] ? sum : to[y];
    }
  }
  const double all = *std::min_element(to, to + others);
  for (size_t y = 0; y < others; ++y) to[y] -= all;
  return all;
}

double Messages::sweep(const std::vector<double>& alone, std::vector<int>& setting) {
  std::vector<double> chosen;
  for (size_t v = 0; v < sizes_.size(); ++v) {
    const auto size = static_cast<size_t>(sizes_[v]);
    sum_in(v, alone);
    chosen = in_;
    for (const Link& link : links_[v]) {
      if (link.other > static_cast<int>(v)) continue;
      const double* row = link.values + static_cast<size_t>(setting[static_cast<size_t>(link.other)]) * size;
      for (size_t x = 0; x < size; ++x) chosen[x] += row[x] - messages_[link.in + x];
    }
    setting[v] = static_cast<int>(std::min_element(chosen.begin(), chosen.end()) - chosen.begin());
    for (const Link& link : links_[v])
      if (link.other > static_cast<int>(v)) send(v, link, share_[v]);
  }
  double bound = 0;
  for (size_t v = sizes_.size(); v-- > 0;) {
    sum_in(v, alone);
    const double least = *std::min_element(in_.begin(), in_.end());
    for (double& value : in_) value -= least;
    bound += least;
    for (const Link& link : links_[v])
      if (link.other < static_cast<int>(v)) bound += send(v, link, share_[v]);
  }
  return bound;
}

}  // namespace trainctl
