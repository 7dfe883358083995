// Predicts how long a step takes by executing the programs that will run on a simulated clock of the machine.
#include "engine/estimate/simulate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "engine/compile/verify/verify.h"
#include "engine/graph/counted_rows.h"
#include "engine/machine/host_bus.h"
#include "engine/plan/token_exchange.h"

namespace trainctl {
namespace {

/// The position of an instruction: a class of ranks, and an index in its program.
struct At {
  size_t of_class = 0;
  int index = -1;  ///< -1: none
};

/// A time, and the instruction that ended at this time.
struct Event {
  Seconds time;
  At at;
};

/// The earliest known time at which an instruction can begin.
struct Begin {
  bool known = false;
  bool is_ready = false;  ///< all instructions of its own rank that it waits for have ended
  Seconds ready;
  Event event;

  void not_before(const Event& other) {
    if (other.time > event.time) event = other;
  }
};

/// A stream of a class of ranks: a sequence of instructions that run one after the other.
struct Lane {
  size_t of_class = 0;
  std::vector<int> indices;
  size_t next = 0;
  Event last;  ///< the end of the previous instruction of the lane
  Begin begin;

  bool finished() const { return next == indices.size(); }
  At head() const { return {of_class, indices[next]}; }
};

/// The messages from one class to another: the time at which each was sent, and the time at which it was received.
struct Channel {
  std::vector<Event> sent, received;
};

/// The number of an instruction among the messages of its channels, or among the calls of its group. A message has one
/// channel for each class of its peers.
struct Place {
  std::vector<size_t> channels;
  size_t number = 0;
};

/// The error of the predicted time of an instruction.
struct Uncertainty {
  double error = 0;  ///< relative
  std::string key;   ///< equal keys have equal errors
};

/// The relative error that is assumed for a kernel or collective without measured samples, whose time is computed from
/// the rates of the machine.
constexpr double kUnmeasured = 0.2;

bool shares_launch(const Program& program, size_t i) {
  const Instruction& now = program.instructions[i];
  return now.launch >= 0 && i > 0 && program.instructions[i - 1].launch == now.launch;
}

bool adds(const Instruction& instruction) {
  return std::any_of(instruction.outputs.begin(), instruction.outputs.end(),
                     [](const Operand& output) { return output.accumulate; });
}

/// Returns the time of a kernel if nothing else runs at the same time.
Seconds alone_seconds(const Program& program, size_t i, const Machine& machine) {
  const Instruction& now = program.instructions[i];
  const std::vector<TensorInfo> inputs = infos_of(now.inputs), outputs = infos_of(now.outputs);
  const Seconds seconds = kernel_time(machine, *kernel_of(now), inputs, outputs, now.attrs, adds(now));
  // One launch starts all of its kernels.
  return shares_launch(program, i) ? std::max(seconds - machine.launch, Seconds{}) : seconds;
}

/// Returns the time that a kernel takes to access its operands in the memory of the host over the bus. Updated states
/// are read and written at the same time, because the bus transfers in both directions.
Seconds seconds_of_bus(const Instruction& kernel, const Machine& machine) {
  double bytes = 0;
  for (const Operand& operand : kernel.outputs)
    if (is_host_offset(operand.offset)) bytes += static_cast<double>(operand.bytes());
  return Bytes{bytes} / host_bus_rate(machine);
}

class Simulator {
 public:
  Simulator(const RankClasses& classes, const Machine& machine)
      : classes_(classes), machine_(machine), in_step_(step_cost(machine.steps)) {
    for (size_t c = 0; c < classes.programs.size(); ++c) add(c);
    for (const MatchedGroup& group : matched_groups(classes))
      for (int a : group.members)
        for (int b : group.members) group_classes_[{class_of(a), group.id}].insert(class_of(b));
    for (const MatchedChannel& met : matched_channels(classes)) {
      note(class_of(met.from), met.sends);
      note(class_of(met.to), met.recvs);
      channels_.emplace_back();
    }
  }

  Simulation run(bool with_deviation) {
    while (Lane* lane = next_lane()) start(*lane);
    Simulation result;
    result.ends = std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.finished(); });
    if (!result.ends) return result;
    result.step = end_.time + in_step_.host;
    result.parts[static_cast<size_t>(Part::host)] = in_step_.host;
    follow_back(result, with_deviation);
    result.spans = std::move(spans_);
    return result;
  }

 private:
  size_t class_of(int rank) const { return static_cast<size_t>(classes_.class_of[static_cast<size_t>(rank)]); }
  const Instruction& code(At at) const {
    return classes_.programs[at.of_class].instructions[static_cast<size_t>(at.index)];
  }
  template <class T>
  static auto& of(std::vector<std::vector<T>>& table, At at) {
    return table[at.of_class][static_cast<size_t>(at.index)];
  }
  int group_id(At at) const { return classes_.group_ids[at.of_class][static_cast<size_t>(code(at).group)]; }

  void add(size_t c) {
    const Program& program = classes_.programs[c];
    const size_t count = program.instructions.size();
    spans_.emplace_back(count);
    ended_.emplace_back(count, 0);
    causes_.emplace_back(count);
    places_.emplace_back(count);
    std::vector<GroupSpread>& spreads = spreads_.emplace_back();
    for (const std::vector<int>& group : program.groups) spreads.push_back(spread_of(machine_, group));
    std::array<Lane, kStreams> lanes;
    std::map<int, size_t> calls;
    std::vector<Seconds>& prices = prices_.emplace_back();
    for (size_t i = 0; i < count; ++i) {
      const Instruction& now = program.instructions[i];
      const At at{c, static_cast<int>(i)};
      prices.push_back(price(at));
      if (now.opcode == Opcode::collective) of(places_, at).number = calls[now.group]++;
      lanes[machine_.overlaps ? static_cast<size_t>(now.stream) : 0].indices.push_back(at.index);
    }
    for (Lane& lane : lanes) {
      lane.of_class = c;
      if (!lane.indices.empty()) lanes_.push_back(std::move(lane));
    }
  }

  void note(size_t of_class, const std::vector<int>& indices) {
    for (size_t k = 0; k < indices.size(); ++k) {
      Place& place = places_[of_class][static_cast<size_t>(indices[k])];
      place.channels.push_back(channels_.size());
      place.number = k;
    }
  }

  /// True if the event (sent or received) of this message has happened in each of its channels. Then also moves `begin`
  /// to the latest of these times.
  bool await(Begin& begin, const Place& place, std::vector<Event> Channel::*events) const {
    for (size_t c : place.channels) {
      const std::vector<Event>& all = channels_[c].*events;
      if (all.size() <= place.number) return false;
      begin.not_before(all[place.number]);
    }
    return true;
  }

  /// Records that the class has reached this collective. Returns true if all other classes of the group have reached it
  /// too.
  bool match_call(At at, Begin& begin) {
    const int id = group_id(at);
    const size_t number = of(places_, at).number;
    std::vector<Event>& mine = arrivals_[{at.of_class, id}];
    if (mine.size() <= number) mine.push_back(begin.event);
    for (size_t member : group_classes_.at({at.of_class, id})) {
      const std::vector<Event>& theirs = arrivals_[{member, id}];
      if (theirs.size() <= number) return false;
      begin.not_before(theirs[number]);
    }
    return true;
  }

  /// Determines when the head of a lane can begin, as far as this is known: after the instructions that it waits for,
  /// and after its peers have arrived.
  Begin begin_of(const Lane& lane) {
    const At at = lane.head();
    const Instruction& now = code(at);
    Begin begin{.event = lane.last};
    for (int w : now.waits) {
      const At awaited{at.of_class, w};
      if (code(awaited).opcode == Opcode::send) {
        if (!await(begin, of(places_, awaited), &Channel::received)) return begin;
      } else if (of(ended_, awaited) == 0) {
        return begin;
      } else {
        begin.not_before({of(spans_, awaited).end, awaited});
      }
    }
    begin.is_ready = true;
    begin.ready = begin.event.time;
    if (now.opcode == Opcode::collective && !match_call(at, begin)) return begin;
    if (now.opcode == Opcode::recv && !await(begin, of(places_, at), &Channel::sent)) return begin;
    begin.known = true;
    return begin;
  }

  /// Returns the lane whose next instruction begins first, among lanes whose next instruction can begin; null if there
  /// is none. The next instruction of a lane is called its head.
  Lane* next_lane() {
    Lane* first = nullptr;
    for (Lane& lane : lanes_) {
      if (lane.finished()) continue;
      if (!lane.begin.known) lane.begin = begin_of(lane);
      if (lane.begin.known && (first == nullptr || lane.begin.event.time < first->begin.event.time)) first = &lane;
    }
    return first;
  }

  /// Runs the head of a lane: computes its end, and records events for the instructions that wait for it.
  void start(Lane& lane) {
    const At at = lane.head();
    const Opcode opcode = code(at).opcode;
    const Seconds begin = lane.begin.event.time, end = begin + delay(lane) + stretched(lane, of(prices_, at));
    of(spans_, at) = {lane.begin.ready, begin, end};
    of(causes_, at) = lane.begin.event.at;
    of(ended_, at) = 1;
    if (opcode == Opcode::send || opcode == Opcode::recv)
      for (size_t c : of(places_, at).channels)
        (opcode == Opcode::send ? channels_[c].sent : channels_[c].received).push_back({end, at});
    lane.last = {end, at};
    lane.begin = {};
    ++lane.next;
    if (end > end_.time) end_ = lane.last;
  }

  /// A message is transferred once both ranks have reached it, and takes as long as its recv; the stream of the send
  /// continues.
  static bool moves(const Instruction& instruction) {
    return instruction.opcode == Opcode::collective || instruction.opcode == Opcode::recv;
  }

  /// Returns how long a kernel of the same rank still runs when the lane's head begins. Includes a kernel that begins
  /// at the same time.
  Seconds kernel_beside(const Lane& lane) {
    const Seconds now = lane.begin.event.time;
    Seconds left;
    for (const Lane& other : lanes_) {
      if (other.of_class != lane.of_class || &other == &lane) continue;
      if (other.next > 0 && code(other.last.at).opcode == Opcode::kernel) left = std::max(left, other.last.time - now);
      if (other.begin.known && code(other.head()).opcode == Opcode::kernel && other.begin.event.time <= now)
        left = std::max(left, of(prices_, other.head()));
    }
    return left;
  }

  /// Returns the time between the begin of the lane's head and the start of its transfer. The transfer waits for
  /// multiprocessors that a running kernel occupies, at most until this kernel ends. The measured time of a recv
  /// already includes CallDelays::exposed, because messages were measured between kernels.
  Seconds delay(const Lane& lane) {
    const At at = lane.head();
    if (!moves(code(at)) || of(prices_, at) == Seconds{}) return {};
    const CallDelays& delays = machine_.delays;
    const Seconds waits = std::min(std::max(delays.beside - delays.exposed, Seconds{}), kernel_beside(lane));
    return code(at).opcode == Opcode::recv ? waits : delays.exposed + waits;
  }

  /// The part of a kernel of this duration that runs while its rank waits for a message.
  Seconds beside_wait(const Lane& lane, Seconds seconds) const {
    if (code(lane.head()).opcode != Opcode::kernel) return {};
    const Seconds begin = lane.begin.event.time, end = begin + seconds;
    Seconds longest;
    for (const Lane& other : lanes_) {
      if (other.of_class != lane.of_class || other.finished() || code(other.head()).opcode != Opcode::recv) continue;
      if (!other.begin.is_ready || other.begin.ready > begin) continue;
      const Seconds comes = other.begin.known ? std::min(other.begin.event.time, end) : end;
      longest = std::max(longest, comes - begin);
    }
    return longest;
  }

  /// Returns the time of the lane's head including the slowdown by overlap: a kernel and a transfer that overlap both
  /// take longer.
  Seconds stretched(const Lane& lane, Seconds seconds) const {
    Seconds beside;
    for (const Lane& other : lanes_) {
      if (other.of_class != lane.of_class || other.next == 0 || moves(code(other.last.at)) == moves(code(lane.head())))
        continue;
      beside = std::max(beside, std::min(other.last.time - lane.begin.event.time, seconds));
    }
    return seconds + (machine_.overlap_cost - 1) * beside + (machine_.wait_cost - 1) * beside_wait(lane, seconds);
  }

  /// Returns how the ranks of a collective's group, or the two ranks of a message, are spread over hosts. In a ring it
  /// is the pair of neighbours that are furthest apart.
  const GroupSpread& spread(At at) {
    const Instruction& now = code(at);
    if (now.opcode == Opcode::collective) return spreads_[at.of_class][static_cast<size_t>(now.group)];
    const PeerPlace place = classes_.peer_place(classes_.programs[at.of_class], now);
    const auto [known, is_new] = spreads_of_messages_.try_emplace({at.of_class, now.peer, place});
    if (is_new) known->second = furthest(at, place);
    return known->second;
  }

  GroupSpread furthest(At at, const PeerPlace& place) const {
    const int first = classes_.programs[at.of_class].rank;
    GroupSpread most = spread_of(machine_, std::array{first, code(at).peer});
    if (place.ring.empty()) return most;
    const Bytes bytes{static_cast<double>(code(at).bytes())};
    for (const int rank : classes_.ranks[at.of_class]) {
      GroupSpread other = spread_of(machine_, std::array{rank, classes_.rank_at(place, rank)});
      if (send_time(machine_, bytes, other) > send_time(machine_, bytes, most)) most = std::move(other);
    }
    return most;
  }

  /// The predicted time of one instruction.
  Seconds price(At at) {
    const Instruction& now = code(at);
    const Program& program = classes_.programs[at.of_class];
    const Bytes bytes{static_cast<double>(now.bytes()) * now.attrs.number(kExpectedShare, 1.0)};
    if (now.idle) return {};
    switch (now.opcode) {
      case Opcode::kernel: {
        const auto i = static_cast<size_t>(at.index);
        return std::max(in_step_.of_kernel(alone_seconds(program, i, machine_), kernel_of(now)->is_product,
                                           !shares_launch(program, i)),
                        seconds_of_bus(now, machine_));
      }
      case Opcode::collective: {
        const bool waits = machine_.kind == DeviceKind::cuda && now.attrs.flag(kHostReads);
        return collective_time(machine_, now.collective, bytes, spread(at)) + Seconds{waits ? kSecondsOfHost : 0.0};
      }
      case Opcode::load: {
        double bytes_loaded = 0;
        for (const Operand& operand : now.outputs) bytes_loaded += static_cast<double>(operand.bytes());
        return Bytes{2 * bytes_loaded} / machine_.memory_rate;
      }
      case Opcode::recv: {
        const Seconds message = send_time(machine_, bytes, spread(at));
        return now.outputs[0].accumulate ? message + 2 * bytes / machine_.memory_rate : message;
      }
      case Opcode::copy:
        return bytes / host_bus_rate(machine_);
      case Opcode::send:
      case Opcode::print:
      case Opcode::wait:
        return {};
    }
    return {};
  }

  /// The relative error of the model that predicts the time of the instruction, and the key of that model: errors of
  /// one model are correlated.
  Uncertainty uncertainty(At at) {
    const Instruction& now = code(at);
    switch (now.opcode) {
      case Opcode::kernel: {
        const std::vector<TensorInfo> inputs = infos_of(now.inputs), outputs = infos_of(now.outputs);
        const KernelDef& kernel = *kernel_of(now);
        const KernelModel* model = model_of(machine_, kernel, inputs, outputs, now.attrs, adds(now));
        const double error = model == nullptr
                                 ? kUnmeasured
                                 : model->error(kernel_sizes(inputs, outputs),
                                                kernel_cost(kernel, inputs, outputs, now.attrs), to_string(now.attrs));
        return {error, kernel_key(kernel, inputs, outputs, now.attrs)};
      }
      case Opcode::collective:
      case Opcode::recv: {
        const bool is_message = now.opcode == Opcode::recv;
        std::string key = is_message ? message_key(spread(at)) : call_key(now.collective, spread(at));
        const auto model = machine_.calls.find(key);
        const Bytes bytes{static_cast<double>(now.bytes())};
        return {model == machine_.calls.end() ? kUnmeasured : model->second.error(call_sizes(bytes), {}),
                std::move(key)};
      }
      case Opcode::load:
        return {kUnmeasured, "load"};
      case Opcode::copy:
        return {kUnmeasured, "copy"};
      case Opcode::send:
      case Opcode::print:
      case Opcode::wait:
        return {};
    }
    return {};
  }

  /// Follows the critical path from the end of the step to its start. Adds the time of each instruction to its part
  /// and, with `with_deviation`, its error to the deviation of the step.
  void follow_back(Simulation& result, bool with_deviation) {
    std::map<std::string, double> deviations;
    Seconds end = end_.time;
    for (At at = end_.at; at.index >= 0; at = of(causes_, at)) {
      const Seconds begin = of(spans_, at).begin;
      result.parts[static_cast<size_t>(part_of(code(at)))] += end - begin;
      end = begin;
      if (!with_deviation) continue;
      const Uncertainty own = uncertainty(at);
      deviations[own.key] += own.error * of(prices_, at).value;
    }
    double squares = std::pow(in_step_.error * result.step.value, 2);
    for (const auto& [key, deviation] : deviations) squares += deviation * deviation;
    result.deviation = {std::sqrt(squares)};
  }

  const RankClasses& classes_;
  const Machine& machine_;
  const StepCost in_step_;
  std::vector<Lane> lanes_;
  // The next members are indexed by class and instruction.
  std::vector<std::vector<SimulatedSpan>> spans_;
  std::vector<std::vector<char>> ended_;
  std::vector<std::vector<At>> causes_;
  std::vector<std::vector<Place>> places_;
  std::vector<std::vector<Seconds>> prices_;
  std::vector<std::vector<GroupSpread>> spreads_;                                  ///< by class and group
  std::map<std::tuple<size_t, int, PeerPlace>, GroupSpread> spreads_of_messages_;  ///< by class, and peer of its first
  std::vector<Channel> channels_;
  // The next members are indexed by class and group.
  std::map<std::pair<size_t, int>, std::set<size_t>> group_classes_;
  std::map<std::pair<size_t, int>, std::vector<Event>> arrivals_;
  Event end_;  // the last of the step so far
};

}  // namespace

StepSample step_alone(const Program& program, const Machine& machine) {
  StepSample step;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    if (program.instructions[i].opcode != Opcode::kernel || program.instructions[i].idle) continue;
    const Seconds alone = alone_seconds(program, i, machine);
    step.alone += alone;
    if (kernel_of(program.instructions[i])->is_product) step.products += alone;
    step.kernels += shares_launch(program, i) ? 0 : 1;
  }
  return step;
}

Simulation simulate(const RankClasses& classes, const Machine& machine, bool with_deviation) {
  return Simulator(classes, machine).run(with_deviation);
}

}  // namespace trainctl
