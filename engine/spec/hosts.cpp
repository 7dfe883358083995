// The hosts of a job, as launch.hosts or a hostfile names them, and how many ranks each gets.
#include "engine/spec/hosts.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "engine/base/text.h"

namespace trainctl {
namespace {

constexpr int kMostRanks = 1 << 20;

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= 255 && text.front() != '-' &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  std::string_view("-_.:@%").find(c) != std::string_view::npos;
         });
}

/// Parses a whole number of at least 1.
std::optional<int> count_of(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 1 || value > kMostRanks) return std::nullopt;
  return value;
}

std::string ranks_text(int ranks) { return std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks"); }

Placement wrong(std::string fault, std::string hint) { return {{}, std::move(fault), std::move(hint)}; }

/// Removes the first word from the line and returns it.
std::string_view take_word(std::string_view& line) {
  const size_t begin = std::min(line.find_first_not_of(" \t\r"), line.size());
  const size_t end = std::min(line.find_first_of(" \t\r", begin), line.size());
  const std::string_view word = line.substr(begin, end - begin);
  line.remove_prefix(end);
  return word;
}

}  // namespace

std::optional<HostRanks> parse_host(std::string_view text) {
  HostRanks host;
  const size_t bracket = text.find('[');
  if (bracket != std::string_view::npos) {
    const size_t close = text.find(']', bracket);
    if (close == std::string_view::npos || (bracket > 0 && text[bracket - 1] != '@')) return std::nullopt;
    host.host = std::string(text.substr(0, bracket)) + std::string(text.substr(bracket + 1, close - bracket - 1));
    text.remove_prefix(close + 1);
    if (!text.empty() && text.front() != ':') return std::nullopt;
    if (!text.empty()) text.remove_prefix(1);
    if (!text.empty()) {
      const auto ranks = count_of(text);
      if (!ranks) return std::nullopt;
      host.ranks = *ranks;
    }
  } else if (std::count(text.begin(), text.end(), ':') == 1) {
    const size_t colon = text.find(':');
    const auto ranks = count_of(text.substr(colon + 1));
    if (!ranks) return std::nullopt;
    host = {std::string(text.substr(0, colon)), *ranks};
  } else {
    host.host = text;
  }
  const size_t at = host.host.find('@');
  if (at != std::string::npos &&
      (at == 0 || !is_name(host.host.substr(at + 1)) || host.host.find('@', at + 1) != std::string::npos))
    return std::nullopt;
  return is_name(host.host) ? std::optional(std::move(host)) : std::nullopt;
}

std::vector<HostRanks> parse_hosts(const std::vector<std::string>& texts) {
  std::vector<HostRanks> hosts;
  for (const std::string& text : texts)
    if (auto host = parse_host(text)) hosts.push_back(std::move(*host));
  return hosts;
}

Placement place_ranks(const std::vector<HostRanks>& hosts, int ranks) {
  const int numbered =
      std::accumulate(hosts.begin(), hosts.end(), 0, [](int sum, const HostRanks& h) { return sum + h.ranks; });
  const auto open =
      static_cast<int>(std::count_if(hosts.begin(), hosts.end(), [](const HostRanks& h) { return h.ranks == 0; }));
  int left = ranks - numbered;
  if (open == 0 && left > 0)
    return wrong(
        "the hosts have slots for only " + ranks_text(numbered) + ", but launch.ranks is " + std::to_string(ranks),
        "set launch.ranks: " + std::to_string(numbered) + ", or add hosts");
  if (open > 0 && left < open)
    return wrong(std::to_string(open) + (open == 1 ? " host is" : " hosts are") +
                     " left without ranks: launch.ranks is " + std::to_string(ranks),
                 "set launch.ranks: " + std::to_string(numbered + open) + " or more, or remove hosts");
  Placement placement;
  int first_ones = open > 0 ? left % open : 0, unfilled = ranks;
  for (HostRanks host : hosts) {
    if (host.ranks == 0) host.ranks = left / open + (first_ones-- > 0 ? 1 : 0);
    host.ranks = std::min(host.ranks, unfilled);
    unfilled -= host.ranks;
    if (host.ranks > 0) placement.hosts.push_back(std::move(host));
  }
  return placement;
}

std::optional<std::vector<HostRanks>> parse_hostfile(std::string_view text, std::string& fault) {
  std::vector<HostRanks> hosts;
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, std::min(end, text.substr(0, end).find('#')));
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::string_view name = take_word(line);
    if (name.empty()) continue;
    auto host = parse_host(name);
    for (std::string_view word = take_word(line); host && !word.empty(); word = take_word(line)) {
      const size_t equals = word.find('=');
      const auto value = equals == std::string_view::npos ? std::nullopt : count_of(word.substr(equals + 1));
      const std::string_view key = word.substr(0, equals);
      if (!value || (key != "slots" && key != "max_slots" && key != "max-slots")) {
        host.reset();
      } else if (key == "slots") {
        host->ranks = *value;
      }
    }
    if (!host) {
      fault = "line " + std::to_string(number) + " does not have the form: host slots=4";
      return std::nullopt;
    }
    const auto same =
        std::find_if(hosts.begin(), hosts.end(), [&](const HostRanks& h) { return h.host == host->host; });
    if (same == hosts.end()) {
      hosts.push_back(std::move(*host));
    } else {
      same->ranks = std::max(same->ranks, 1) + std::max(host->ranks, 1);
    }
  }
  return hosts;
}

int managed_hosts(const LaunchSpec& launch) {
  switch (launch.target) {
    case Target::slurm:
      return launch.slurm.nodes;
    case Target::pbs:
      return launch.pbs.nodes;
    case Target::lsf:
      return launch.lsf.nodes;
    case Target::hosts:
    case Target::kubernetes:
    case Target::compose:
      break;
  }
  return launch.kubernetes.pods;
}

bool is_batch(Target target) { return target == Target::slurm || target == Target::pbs || target == Target::lsf; }

}  // namespace trainctl
