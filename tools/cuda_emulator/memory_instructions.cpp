// Loads, stores, atomics, and asynchronous copies.
#include <bit>
#include <cstring>

#include "tools/cuda_emulator/decoder.h"
#include "tools/cuda_emulator/global_races.h"
#include "tools/cuda_emulator/lanes.h"

namespace trainctl::emulator {
namespace {

uint64_t address_of(const Instruction& in, Warp& w, int lane) {
  const uint64_t base = in.width == 8 ? w.at<uint64_t>(in.from[0])[lane] : w.at<uint32_t>(in.from[0])[lane];
  const uint64_t address = base + static_cast<uint64_t>(in.offset);
  return in.space == Space::shared ? address & 0xffffffff : address;
}

std::byte* local_of(const Instruction& in, Warp& w, int lane, uint64_t address, uint32_t bytes) {
  const size_t each = w.block->cluster->launch->kernel->local_bytes;
  if (address + bytes > each) trap(w, in, lane, "out of bounds", "local memory");
  if (address % bytes != 0) trap(w, in, lane, "misaligned address", "local memory");
  return w.local.data() + each * static_cast<size_t>(lane) + address;
}

const std::byte* read(const Instruction& in, Warp& w, int lane, uint32_t bytes) {
  const uint64_t address = address_of(in, w, lane);
  switch (in.space) {
    case Space::global:
      return read_global(w, in, lane, address, bytes);
    case Space::shared:
      return read_shared(w, in, lane, static_cast<uint32_t>(address), bytes);
    case Space::local:
      return local_of(in, w, lane, address, bytes);
    case Space::param: {
      const Launch& launch = *w.block->cluster->launch;
      if (address + bytes > launch.kernel->parameter_bytes) trap(w, in, lane, "out of bounds", "parameters");
      if (address % bytes != 0) trap(w, in, lane, "misaligned address", "parameters");
      return launch.parameters + address;
    }
    case Space::generic:
      break;
  }
  if ((address & kWindowMask) == kSharedWindow) return read_shared(w, in, lane, static_cast<uint32_t>(address), bytes);
  return read_global(w, in, lane, address, bytes);
}

void write(const Instruction& in, Warp& w, int lane, const void* value, uint32_t bytes) {
  const uint64_t address = address_of(in, w, lane);
  if (in.space == Space::local) {
    std::memcpy(local_of(in, w, lane, address, bytes), value, bytes);
  } else if (in.space == Space::shared || (in.space == Space::generic && (address & kWindowMask) == kSharedWindow)) {
    write_shared(w, in, lane, static_cast<uint32_t>(address), bytes, value);
  } else {
    std::memcpy(write_global(w, in, lane, address, bytes), value, bytes);
  }
}

template <class Element>
void set_register(const Instruction& in, Warp& w, int which, int lane, Element value) {
  if (in.to[which] < 0) return;
  switch (in.data_width) {
    case 2:
      w.at<uint16_t>(in.to[which])[lane] = static_cast<uint16_t>(value);
      break;
    case 4:
      w.at<uint32_t>(in.to[which])[lane] = static_cast<uint32_t>(value);
      break;
    default:
      w.at<uint64_t>(in.to[which])[lane] = static_cast<uint64_t>(value);
      break;
  }
}

/// Loads a parameter from an address that is the same for all lanes.
template <class Element>
void load_parameter(const Instruction& in, Warp& w, uint32_t mask) {
  const Launch& launch = *w.block->cluster->launch;
  if (static_cast<size_t>(in.offset) + sizeof(Element) * in.count > launch.kernel->parameter_bytes)
    trap(w, in, 0, "out of bounds", "parameters");
  for (int i = 0; i < in.count; ++i) {
    Element value;
    std::memcpy(&value, launch.parameters + in.offset + sizeof(Element) * static_cast<size_t>(i), sizeof value);
    each_lane(mask, [&](int lane) { set_register(in, w, i, lane, value); });
  }
}

/// The addresses of all lanes of the mask, valid if all of them are in one allocation and pass the checks.
struct Touched {
  Allocation* all = nullptr;  ///< null: check each lane
  uint64_t addresses[kLanes];
};
void touch(const Instruction& in, Warp& w, uint32_t mask, uint32_t bytes, bool writes, Touched& t) {
  const Launch& launch = *w.block->cluster->launch;
  uint64_t least = ~uint64_t{0}, most = 0, low_bits = 0;
  each_lane(mask, [&](int lane) {
    const uint64_t a = t.addresses[lane] = address_of(in, w, lane);
    least = std::min(least, a);
    most = std::max(most, a);
    low_bits |= a;
  });
  if (low_bits % bytes != 0) return;
  Allocation* a = global_memory().find(least);
  if (a == nullptr || !a->holds(most, bytes)) return;
  if (launch.before != 0 && (w.waited & mask) != mask) return;
  if (writes && a->read_only) return;
  if (!writes && a->written != nullptr) {
    uint8_t all = 1;
    each_lane(mask, [&](int lane) {
      const uint8_t* written = a->written.get() + (t.addresses[lane] - a->first);
      for (uint32_t i = 0; i < bytes; ++i) all &= written[i];
    });
    if (all == 0) return;
  }
  (writes ? a->written_by : a->read_by) = launch.number;
  note_global_lanes(w, in, mask, *a, t.addresses, bytes, writes);
  t.all = a;
}

/// Loads the value at one address of shared memory for all lanes, into registers that may be wider than the element.
/// The search for races gets only two of the lanes: of two lanes at most one is the lane that wrote, and two readers
/// per word are recorded anyway.
template <class Element>
void broadcast(const Instruction& in, Warp& w, uint32_t mask, uint32_t bytes) {
  const int first = std::countr_zero(mask), last = kLanes - 1 - std::countl_zero(mask);
  Element values[4];
  std::memcpy(values, read(in, w, first, bytes), bytes);
  if (last != first) read(in, w, last, bytes);
  each_lane(mask, [&](int lane) {
    for (int i = 0; i < in.count; ++i) set_register(in, w, i, lane, values[i]);
  });
}

bool reads_one_address(const Instruction& in, Warp& w, uint32_t mask) {
  const uint64_t address = address_of(in, w, std::countr_zero(mask));
  for (uint32_t left = mask & (mask - 1); left != 0; left &= left - 1)
    if (address_of(in, w, std::countr_zero(left)) != address) return false;
  return true;
}

template <class Element>
void load_shared(const Instruction& in, Warp& w, uint32_t mask, uint32_t bytes) {
  uint32_t addresses[kLanes];
  const std::byte* from[kLanes];
  each_lane(mask, [&](int lane) { addresses[lane] = static_cast<uint32_t>(address_of(in, w, lane)); });
  read_shared_lanes(w, in, mask, addresses, bytes, from);
  each_lane(mask, [&](int lane) {
    Element values[4];
    std::memcpy(values, from[lane], bytes);
    for (int i = 0; i < in.count; ++i) set_register(in, w, i, lane, values[i]);
  });
}

template <class Element>
void load(const Instruction& in, Warp& w, uint32_t mask) {
  const uint32_t bytes = static_cast<uint32_t>(sizeof(Element)) * in.count;
  if (in.space == Space::shared && reads_one_address(in, w, mask)) return broadcast<Element>(in, w, mask, bytes);
  if (in.space == Space::shared) return load_shared<Element>(in, w, mask, bytes);
  Touched t;
  if (in.space == Space::global) touch(in, w, mask, bytes, false, t);
  each_lane(mask, [&](int lane) {
    Element values[4];
    std::memcpy(values,
                t.all != nullptr ? reinterpret_cast<const std::byte*>(t.addresses[lane]) : read(in, w, lane, bytes),
                bytes);
    for (int i = 0; i < in.count; ++i) set_register(in, w, i, lane, values[i]);
  });
}

template <class Element>
void store(const Instruction& in, Warp& w, uint32_t mask) {
  const uint32_t bytes = static_cast<uint32_t>(sizeof(Element)) * in.count;
  Touched t;
  if (in.space == Space::global) touch(in, w, mask, bytes, true, t);
  each_lane(mask, [&](int lane) {
    Element values[4];
    for (int i = 0; i < in.count; ++i) {
      const std::byte* from = w.registers + in.from[1 + i] + static_cast<ptrdiff_t>(in.data_width) * lane;
      std::memcpy(&values[i], from, sizeof(Element));
    }
    if (t.all == nullptr) return write(in, w, lane, values, bytes);
    std::memcpy(reinterpret_cast<void*>(t.addresses[lane]), values, bytes);
    if (t.all->written != nullptr) std::memset(t.all->written.get() + (t.addresses[lane] - t.all->first), 1, bytes);
  });
}

template <class Element>
Run load_from(bool parameter) {
  return parameter ? load_parameter<Element> : load<Element>;
}
Run load_of(std::string_view type, bool parameter) {
  if (type == "s8") return load_from<int8_t>(parameter);
  if (type == "u8" || type == "b8") return load_from<uint8_t>(parameter);
  if (type == "s16") return load_from<int16_t>(parameter);
  if (type == "u16" || type == "b16") return load_from<uint16_t>(parameter);
  if (type == "s32") return load_from<int32_t>(parameter);
  if (type == "u32" || type == "b32" || type == "f32") return load_from<uint32_t>(parameter);
  return load_from<uint64_t>(parameter);
}
Run store_of(size_t bytes) {
  return bytes == 1 ? store<uint8_t> : bytes == 2 ? store<uint16_t> : bytes == 4 ? store<uint32_t> : store<uint64_t>;
}

template <class T, class F>
void run_atomic(const Instruction& in, Warp& w, uint32_t mask) {
  each_lane(mask, [&](int lane) {
    const uint64_t address = address_of(in, w, lane);
    const bool shared = in.space == Space::shared;
    T before;
    const auto at = static_cast<uint32_t>(address);
    std::memcpy(&before,
                shared ? read_shared(w, in, lane, at, sizeof(T), true) : global_word(w, in, lane, address, sizeof(T)),
                sizeof(T));
    const T after = F()(before, w.at<T>(in.from[1])[lane]);
    if (shared)
      write_shared(w, in, lane, at, sizeof(T), &after, true);
    else
      std::memcpy(global_word(w, in, lane, address, sizeof(T)), &after, sizeof(T)), note_atomic(w, address);
    if (in.to[0] >= 0) w.at<T>(in.to[0])[lane] = before;
  });
}
struct Add {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a + b);
  }
};

Space space_of(const Statement& s) {
  if (s.has("global")) return Space::global;
  if (s.has("shared") || s.has("shared::cta") || s.has("shared::cluster")) return Space::shared;
  if (s.has("param")) return Space::param;
  if (s.has("local")) return Space::local;
  return Space::generic;
}

bool decode_load_or_store(Decoder& d, const Statement& s, Instruction& in) {
  const bool loads = s.words[0] == "ld", stores = s.words[0] == "st";
  if ((!loads && !stores) || s.has("async")) return false;
  const std::string_view type = s.words.back();
  in.space = space_of(s);
  in.element_bytes = static_cast<uint8_t>(bytes_of_type(type));
  d.address(s.arguments.at(loads ? 0 + 1 : 0), in);
  const Argument& data = s.arguments.at(loads ? 0 : 1);
  const std::vector<Argument> one{data};
  const std::vector<Argument>& values = data.kind == Argument::Kind::list ? data.parts : one;
  in.count = static_cast<uint8_t>(values.size());
  in.data_width = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    uint8_t width = std::max<uint8_t>(in.element_bytes, 2);
    const bool is_register =
        values[i].kind == Argument::Kind::name && values[i].name[0] == '%' && d.is_register(values[i]);
    if (is_register) width = d.reg(values[i]).bytes;
    if (in.data_width == 0) in.data_width = width;
    if (is_register && width != in.data_width) return false;
    if (loads)
      in.to[i] = values[i].kind == Argument::Kind::sink ? -1 : d.reg(values[i]).at;
    else
      in.from[1 + i] = d.source(values[i], in.data_width);
  }
  const Argument& base = s.arguments.at(loads ? 1 : 0).parts.at(0);
  in.run = loads ? load_of(type, in.space == Space::param && !d.is_register(base)) : store_of(in.element_bytes);
  return true;
}

/// The instruction ldmatrix: loads four matrices of 8 x 8 halves. Lane i holds the address of row i % 8 of matrix i /
/// 8. With .trans, a lane gets two halves of a column of each matrix.
void load_matrices(const Instruction& in, Warp& w, uint32_t) {
  uint16_t rows[kLanes][8];
  for (int lane = 0; lane < kLanes; ++lane) std::memcpy(rows[lane], read(in, w, lane, 16), 16);
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const uint16_t* const two[] = {rows[i * 8 + lane % 4 * 2], rows[i * 8 + lane % 4 * 2 + 1]};
      w.at<uint32_t>(in.to[i])[lane] = two[0][lane / 4] | uint32_t{two[1][lane / 4]} << 16;
    }
  }
}

bool decode_load_matrices(Decoder& d, const Statement& s, Instruction& in) {
  if (s.opcode != "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16") return false;
  in.space = Space::shared;
  d.address(s.arguments.at(1), in);
  for (size_t i = 0; i < 4; ++i) in.to[i] = d.target(s.arguments.at(0).parts.at(i), 4);
  in.run = load_matrices;
  return true;
}

/// from[1]: address in global memory; from[2]: bytes to read there.
void begin_copy(const Instruction& in, Warp& w, uint32_t mask) {
  each_lane(mask, [&](int lane) {
    PendingCopy c;
    c.to = static_cast<uint32_t>(address_of(in, w, lane));
    c.from = w.at<uint64_t>(in.from[1])[lane] + static_cast<uint64_t>(in.target);
    c.bytes = in.element_bytes;
    c.taken = static_cast<uint8_t>(std::min<uint32_t>(w.at<uint32_t>(in.from[2])[lane], in.element_bytes));
    c.lane = static_cast<uint8_t>(lane);
    c.group = w.copy_groups[lane];
    c.in = &in;
    if (c.taken > 0 && c.from % c.bytes != 0) trap(w, in, lane, "misaligned address", "copy from global memory");
    expect_write(w, in, lane, c.to, c.bytes);
    w.copies.push_back(c);
  });
}

bool decode_copy(Decoder& d, const Statement& s, Instruction& in) {
  if (s.words[0] != "cp" || s.words[1] != "async") return false;
  if (s.opcode == "cp.async.commit_group") {
    in.run = [](const Instruction&, Warp& w, uint32_t mask) {
      each_lane(mask, [&](int lane) { ++w.copy_groups[lane]; });
    };
    return true;
  }
  if (s.opcode == "cp.async.wait_group") {
    in.offset = s.arguments.at(0).value;
    in.run = [](const Instruction& i, Warp& w, uint32_t mask) {
      w.finish_copies(mask, static_cast<int32_t>(i.offset));
    };
    return true;
  }
  if (s.opcode == "cp.async.wait_all") {
    in.run = [](const Instruction&, Warp& w, uint32_t mask) { w.finish_copies(mask, -1); };
    return true;
  }
  if (s.opcode == "cp.async.ca.shared.global" || s.opcode == "cp.async.cg.shared.global") {
    in.space = Space::shared;
    d.address(s.arguments.at(0), in);
    Instruction from;
    d.address(s.arguments.at(1), from);
    if (from.width != 8) return false;
    in.from[1] = from.from[0];
    in.target = static_cast<int32_t>(from.offset);
    in.element_bytes = static_cast<uint8_t>(s.arguments.at(2).value);
    in.from[2] = s.arguments.size() > 3 ? d.source(s.arguments[3], 4) : d.constant(uint32_t{in.element_bytes});
    in.run = begin_copy;
    return true;
  }
  return false;
}

/// The description of a write to shared memory that an mbarrier will count.
InFlight sent_by(const Instruction& in, Warp& w, int lane, int32_t barrier) {
  InFlight f;
  f.from = &w;
  f.in = &in;
  f.lane = lane;
  f.to = w.at<uint32_t>(in.from[0])[lane];
  f.barrier = w.at<uint32_t>(barrier)[lane];
  f.clock = w.block->cluster->clocks.now(w.number);
  return f;
}

void send_off(const Instruction& in, Warp& w, const InFlight& f, const std::string& what) {
  Cluster& cluster = *w.block->cluster;
  Block& there = cluster.block_of(f.barrier, *w.block);
  const auto found = there.barriers.find(f.barrier & 0xffffff);
  if (found == there.barriers.end())
    trap(w, in, f.lane, "mbarrier", what + " signals an mbarrier that is not initialised yet");
  cluster.clocks.tell(w.number, found->second.news);
  cluster.in_flight.push_back(f);
}

void send_store(const Instruction& in, Warp& w, uint32_t mask) {
  each_lane(mask, [&](int lane) {
    if (w.block->cluster->blocks.size() == 1)  // seen on an H200
      trap(w, in, lane, "illegal instruction", "st.async by a block without a cluster");
    InFlight f = sent_by(in, w, lane, in.from[5]);
    f.bytes = in.count * 4u;
    if (f.to >> 24 != f.barrier >> 24)
      trap(w, in, lane, "mbarrier", "st.async signals an mbarrier of another block than it writes to");
    for (int i = 0; i < in.count; ++i) f.data[i] = w.at<uint32_t>(in.from[1 + i])[lane];
    expect_write(w, in, lane, f.to, f.bytes);
    send_off(in, w, f, "st.async");
  });
  w.block->cluster->clocks.tick(w.number);
}

void send_tile(const Instruction& in, Warp& w, uint32_t mask) {
  each_lane(mask, [&](int lane) {
    InFlight f = sent_by(in, w, lane, in.from[4]);
    f.kind = InFlight::Kind::tile;
    f.map = read_map(w, in, lane, w.at<uint64_t>(in.from[1])[lane]);
    for (int i = 0; i < 2; ++i) f.coordinates[i] = w.at<int32_t>(in.from[2 + i])[lane];
    f.bytes = bytes_of_tile(f.map);
    if (f.to % 128 != 0) trap(w, in, lane, "misaligned address", "a tile must begin at a multiple of 128 bytes");
    for (uint32_t at = 0; at < f.bytes; at += 4) expect_write(w, in, lane, f.to + at, 4);
    send_off(in, w, f, "a copy");
  });
  w.block->cluster->clocks.tick(w.number);
}

bool decode_sends(Decoder& d, const Statement& s, Instruction& in) {
  const auto& a = s.arguments;
  if (s.words[0] == "st" && s.words[1] == "async") {
    in.space = Space::shared;
    d.address(a.at(0), in);
    Instruction counter;
    d.address(a.at(2), counter);
    if (in.width != 4 || counter.width != 4 || in.offset != 0 || counter.offset != 0 || s.words.back() != "f32")
      return false;
    in.from[5] = counter.from[0];
    const std::vector<Argument> one{a.at(1)};
    const std::vector<Argument>& values = a[1].kind == Argument::Kind::list ? a[1].parts : one;
    in.count = static_cast<uint8_t>(values.size());
    for (size_t i = 0; i < values.size(); ++i) in.from[1 + i] = d.source(values[i], 4);
    in.run = send_store;
    return true;
  }
  if (s.opcode == "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes") {
    in.space = Space::shared;
    d.address(a.at(0), in);
    const Argument& map = a.at(1);
    in.from[1] = d.source(map.parts.at(0), 8);
    for (size_t i = 0; i < 2; ++i) in.from[2 + i] = d.source(map.parts.at(1).parts.at(i), 4);
    in.from[4] = d.source(a.at(2).parts.at(0), 4);
    in.run = send_tile;
    return true;
  }
  if (s.opcode == "prefetch.tensormap") {
    in.run = [](const Instruction&, Warp&, uint32_t) {};
    return true;
  }
  if (s.opcode == "mapa.shared::cluster.u32") {
    in.to[0] = d.target(a.at(0), 4);
    in.from[0] = d.source(a.at(1), 4);
    in.from[1] = d.source(a.at(2), 4);
    in.run = [](const Instruction& i, Warp& w, uint32_t mask) {
      const uint32_t *at = w.at<uint32_t>(i.from[0]), *block = w.at<uint32_t>(i.from[1]);
      each_lane(mask, [&](int lane) {
        if (block[lane] >= w.block->cluster->blocks.size()) trap(w, i, lane, "mapa", "no such block in the cluster");
        w.at<uint32_t>(i.to[0])[lane] = (at[lane] & 0xffffff) | (block[lane] + 1) << 24;
      });
    };
    return true;
  }
  return false;
}

}  // namespace

bool decode_memory(Decoder& d, const Statement& s, Instruction& in) {
  if (decode_sends(d, s, in) || decode_load_or_store(d, s, in) || decode_copy(d, s, in) ||
      decode_load_matrices(d, s, in))
    return true;
  if (s.words[0] != "atom" && s.words[0] != "red") return false;
  if (!s.has("add") || s.words.back() != "u32") return false;
  const bool result = s.words[0] == "atom";
  in.space = space_of(s);
  in.element_bytes = 4;
  d.address(s.arguments.at(result ? 1 : 0), in);
  if (result && s.arguments[0].kind != Argument::Kind::sink) in.to[0] = d.target(s.arguments[0], 4);
  in.from[1] = d.source(s.arguments.at(result ? 2 : 1), 4);
  in.run = run_atomic<uint32_t, Add>;
  return true;
}

}  // namespace trainctl::emulator
