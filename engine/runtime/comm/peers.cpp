// Tells which ranks a blocked call waits for, where each of them is, and when waiting has become hopeless.
#include "engine/runtime/comm/peers.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>

namespace trainctl::comm {

std::string where_is(RankState state, RankPosition position) {
  if (state == RankState::done) return "it has finished";
  std::string place = "it is still loading";
  if (position.instruction >= 0) {
    place = fmt::format("it is at step {}, instruction {}", position.step, position.instruction);
  } else if (position.step > 0) {
    place = fmt::format("it is between steps, after step {}", position.step);
  } else if (state == RankState::starting) {
    place = "it has not started";
  }
  return state == RankState::failed ? "it has failed; its last known state: " + place : place;
}

std::string format_ranks(const std::vector<int>& ranks) {
  std::string text;
  for (int rank : ranks) text += fmt::format("{}{}", text.empty() ? "" : ",", rank);
  return "{" + text + "}";
}

CommError blocked_call(const std::string& call, const std::string& event, RankPosition mine,
                       const std::vector<MissingRank>& missing) {
  constexpr size_t most = 8;
  std::string text = call + " " + event;
  if (mine.step > 0) text += fmt::format(" at step {}", mine.step);
  for (size_t i = 0; i < missing.size() && i < most; ++i) {
    text += fmt::format("; rank {} has not arrived: {}", missing[i].rank, missing[i].where);
  }
  if (missing.size() > most) text += fmt::format("; {} more ranks have not arrived", missing.size() - most);
  CommError error(text);
  for (const MissingRank& rank : missing) error.missing.push_back(rank.rank);
  return error;
}

CommError Peers::give_up(const std::string& call, int lost, const std::vector<int>& missing) const {
  if (lost < 0) {
    std::vector<MissingRank> ranks;
    for (int rank : missing) ranks.push_back({rank, describe(rank)});
    return blocked_call(call, fmt::format("timed out after {:g} s", timeout_seconds_), position(rank_), ranks);
  }
  const RankState state = memory_.status(lost).state.load(std::memory_order_acquire);
  const std::string how = state == RankState::failed ? "has failed"
                          : state == RankState::done ? "has finished without this call"
                                                     : "has exited";
  const RankPosition mine = position(rank_), theirs = position(lost);
  std::string text = call + " was cancelled";
  if (mine.step > 0) text += fmt::format(" at step {}", mine.step);
  text += fmt::format(": rank {} {}", lost, how);
  if (theirs.step > 0) text += fmt::format(", last seen at step {}, instruction {}", theirs.step, theirs.instruction);
  CommError error(text);
  error.missing = {lost};
  return error;
}

bool Peers::is_gone(int rank) const {
  const RankStatus& status = memory_.status(rank);
  const RankState state = status.state.load(std::memory_order_acquire);
  if (state == RankState::failed) return true;
  if (state == RankState::done) return false;
  // The launcher marks ranks that it sees die; this check is for ranks that no longer have a launcher.
  const pid_t pid = status.pid.load(std::memory_order_relaxed);
  return pid != 0 && pid != getpid() && kill(pid, 0) != 0 && errno == ESRCH;
}

bool Peers::is_done(int rank) const {
  return memory_.status(rank).state.load(std::memory_order_acquire) == RankState::done;
}

RankPosition Peers::position(int rank) const {
  const RankStatus& status = memory_.status(rank);
  return {status.step.load(std::memory_order_relaxed), status.instruction.load(std::memory_order_relaxed)};
}

std::string Peers::describe(int rank) const {
  return where_is(memory_.status(rank).state.load(std::memory_order_acquire), position(rank));
}

}  // namespace trainctl::comm
