// A collective is work of its stream: each rank sends every other rank the data that it needs, then receives data and
// sums them in the order of the group. Sent data wait in a queue, so senders never wait for receivers.
#include "tools/cuda_emulator/nccl.h"

#include <cuda_runtime_api.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/graph/bf16.h"
#include "engine/graph/f16.h"
#include "engine/runtime/comm/nccl_library.h"
#include "tools/cuda_emulator/runtime_state.h"

struct ncclComm {
  uint64_t id = 0;
  std::vector<int> ranks;
  int me = 0;
  uint64_t splits = 0;
  int size() const { return static_cast<int>(ranks.size()); }
};

namespace trainctl::emulator {
namespace {

using Bytes = std::vector<std::byte>;

struct Header {
  uint64_t comm, bytes;
};

[[noreturn]] void peer_is_gone(int peer) {
  std::fprintf(stderr, "emulator: NCCL: rank %d is gone\n", peer);
  _exit(3);
}

/// The connection to another rank, both directions.
class Link {
 public:
  Link(int peer, int fd) : peer_(peer), fd_(fd), writer_([this] { write_all(); }) { writer_.detach(); }

  void send(uint64_t comm, Bytes data) {
    const std::lock_guard lock(mutex_);
    queue_.push_back({comm, std::move(data)});
    changed_.notify_all();
  }
  Bytes receive(uint64_t comm) {
    std::deque<Bytes>& arrived = arrived_[comm];
    while (arrived.empty()) {
      Header header{};
      read_bytes(&header, sizeof header);
      Bytes data(header.bytes);
      read_bytes(data.data(), data.size());
      arrived_[header.comm].push_back(std::move(data));
    }
    Bytes data = std::move(arrived.front());
    arrived.pop_front();
    return data;
  }
  void flush() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return queue_.empty(); });
  }

 private:
  void write_all() {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !queue_.empty(); });
      const auto& [comm, data] = queue_.front();  // its address does not change when others are queued behind it
      lock.unlock();
      const Header header{comm, data.size()};
      write_bytes(&header, sizeof header);
      write_bytes(data.data(), data.size());
      lock.lock();
      queue_.pop_front();
      changed_.notify_all();
    }
  }
  void write_bytes(const void* data, size_t bytes) const {
    for (size_t done = 0; done < bytes;) {
      const ssize_t n = ::send(fd_, static_cast<const std::byte*>(data) + done, bytes - done, MSG_NOSIGNAL);
      if (n <= 0) peer_is_gone(peer_);
      done += static_cast<size_t>(n);
    }
  }
  void read_bytes(void* data, size_t bytes) const {
    for (size_t done = 0; done < bytes;) {
      const ssize_t n = ::read(fd_, static_cast<std::byte*>(data) + done, bytes - done);
      if (n <= 0) peer_is_gone(peer_);
      done += static_cast<size_t>(n);
    }
  }

  const int peer_, fd_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<uint64_t, Bytes>> queue_;
  std::map<uint64_t, std::deque<Bytes>> arrived_;
  std::thread writer_;
};

struct Links {
  int rank = 0;
  std::vector<std::vector<int>> fds;          ///< [from][to]
  std::vector<std::unique_ptr<Link>> peers;   ///< null: this rank
  std::map<uint64_t, std::deque<Bytes>> own;  ///< messages to itself
};

Links& links() {
  static Links all;
  return all;
}

void send_to(const ncclComm& comm, int member, Bytes data) {
  const int peer = comm.ranks[static_cast<size_t>(member)];
  if (peer == links().rank) return links().own[comm.id].push_back(std::move(data));
  links().peers[static_cast<size_t>(peer)]->send(comm.id, std::move(data));
}

Bytes receive_from(const ncclComm& comm, int member) {
  const int peer = comm.ranks[static_cast<size_t>(member)];
  if (peer != links().rank) return links().peers[static_cast<size_t>(peer)]->receive(comm.id);
  std::deque<Bytes>& own = links().own[comm.id];
  Bytes data = std::move(own.front());
  own.pop_front();
  return data;
}

size_t size_of(ncclDataType_t type) {
  return type == ncclUint8 ? 1 : type == ncclBfloat16 || type == ncclFloat16 ? 2 : 4;
}

Bytes from_device(const void* data, size_t bytes) {
  Bytes copy(bytes);
  cudaMemcpy(copy.data(), data, bytes, cudaMemcpyDeviceToHost);
  return copy;
}

void to_device(void* to, const Bytes& data) { cudaMemcpy(to, data.data(), data.size(), cudaMemcpyHostToDevice); }

template <class T>
std::vector<T> values_of(const Bytes& data) {
  std::vector<T> values(data.size() / sizeof(T));
  std::memcpy(values.data(), data.data(), data.size());
  return values;
}

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes data(values.size() * sizeof(T));
  std::memcpy(data.data(), values.data(), data.size());
  return data;
}

template <class T>
Bytes sum_of(const std::vector<Bytes>& parts) {
  std::vector<T> sum = values_of<T>(parts[0]);
  for (size_t p = 1; p < parts.size(); ++p) {
    const std::vector<T> part = values_of<T>(parts[p]);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  return bytes_of(sum);
}

/// Adds 16-bit floats, and rounds after each rank, as NCCL's own sums may do.
template <float (*kLoad)(uint16_t), uint16_t (*kStore)(float)>
Bytes sum_of_halves(const std::vector<Bytes>& parts) {
  std::vector<uint16_t> sum = values_of<uint16_t>(parts[0]);
  for (size_t p = 1; p < parts.size(); ++p) {
    const std::vector<uint16_t> part = values_of<uint16_t>(parts[p]);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = kStore(kLoad(sum[i]) + kLoad(part[i]));
  }
  return bytes_of(sum);
}

Bytes sum(const ncclComm& comm, ncclDataType_t type) {
  std::vector<Bytes> parts;
  for (int j = 0; j < comm.size(); ++j) parts.push_back(receive_from(comm, j));
  return type == ncclFloat32    ? sum_of<float>(parts)
         : type == ncclBfloat16 ? sum_of_halves<from_bf16, to_bf16>(parts)
         : type == ncclFloat16  ? sum_of_halves<from_f16, to_f16>(parts)
                                : sum_of<int32_t>(parts);
}

/// The number of nested ncclGroupStart calls. Within a group, all receives run after all sends.
thread_local int group_depth = 0;
thread_local std::vector<Work> group_receives;

ncclResult_t version(int* to) { return *to = NCCL_VERSION_CODE, ncclSuccess; }
ncclResult_t unique_id(ncclUniqueId* id) { return *id = {}, ncclSuccess; }

ncclResult_t init_rank(ncclComm_t* to, int ranks, ncclUniqueId, int rank, ncclConfig_t*) {
  auto comm = std::make_unique<ncclComm>();
  for (int r = 0; r < ranks; ++r) comm->ranks.push_back(r);
  comm->id = 1;
  comm->me = rank;
  *to = comm.release();
  return ncclSuccess;
}

ncclResult_t split(ncclComm_t world, int color, int key, ncclComm_t* to, ncclConfig_t*) {
  for (int j = 0; j < world->size(); ++j) send_to(*world, j, bytes_of(std::vector<int>{color, key}));
  std::map<int, int> members;  // by key
  for (int j = 0; j < world->size(); ++j) {
    const std::vector<int> theirs = values_of<int>(receive_from(*world, j));
    if (theirs[0] == color) members[theirs[1]] = world->ranks[static_cast<size_t>(j)];
  }
  ++world->splits;
  *to = nullptr;
  if (color == NCCL_SPLIT_NOCOLOR) return ncclSuccess;
  auto comm = std::make_unique<ncclComm>();
  comm->id = world->splits * 1000 + static_cast<uint64_t>(color) + 2;
  for (const auto& [place, rank] : members) {
    if (rank == links().rank) comm->me = comm->size();
    comm->ranks.push_back(rank);
  }
  *to = comm.release();
  return ncclSuccess;
}

ncclResult_t all_reduce(const void* in, void* out, size_t n, ncclDataType_t type, ncclRedOp_t, ncclComm_t comm,
                        cudaStream_t) {
  submit([=] {
    settle();
    const Bytes own = from_device(in, n * size_of(type));
    for (int j = 0; j < comm->size(); ++j) send_to(*comm, j, own);
    to_device(out, sum(*comm, type));
  });
  return ncclSuccess;
}

ncclResult_t all_gather(const void* in, void* out, size_t n, ncclDataType_t type, ncclComm_t comm, cudaStream_t) {
  submit([=] {
    settle();
    const size_t bytes = n * size_of(type);
    const Bytes own = from_device(in, bytes);
    for (int j = 0; j < comm->size(); ++j) send_to(*comm, j, own);
    for (int j = 0; j < comm->size(); ++j)
      to_device(static_cast<std::byte*>(out) + static_cast<size_t>(j) * bytes, receive_from(*comm, j));
  });
  return ncclSuccess;
}

ncclResult_t reduce_scatter(const void* in, void* out, size_t n, ncclDataType_t type, ncclRedOp_t, ncclComm_t comm,
                            cudaStream_t) {
  submit([=] {
    settle();
    const size_t bytes = n * size_of(type);
    for (int j = 0; j < comm->size(); ++j)
      send_to(*comm, j, from_device(static_cast<const std::byte*>(in) + static_cast<size_t>(j) * bytes, bytes));
    to_device(out, sum(*comm, type));
  });
  return ncclSuccess;
}

ncclResult_t broadcast(const void* in, void* out, size_t n, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t) {
  submit([=] {
    settle();
    if (comm->me == root) {
      const Bytes own = from_device(in, n * size_of(type));
      for (int j = 0; j < comm->size(); ++j) send_to(*comm, j, own);
    }
    to_device(out, receive_from(*comm, root));
  });
  return ncclSuccess;
}

ncclResult_t send(const void* in, size_t n, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t) {
  submit([=] {
    settle();
    send_to(*comm, peer, from_device(in, n * size_of(type)));
  });
  return ncclSuccess;
}

ncclResult_t recv(void* out, size_t, ncclDataType_t, int peer, ncclComm_t comm, cudaStream_t) {
  Work work = [=] {
    settle();
    to_device(out, receive_from(*comm, peer));
  };
  group_depth > 0 ? group_receives.push_back(std::move(work)) : submit(std::move(work));
  return ncclSuccess;
}

ncclResult_t group_start() { return ++group_depth, ncclSuccess; }
ncclResult_t group_end() {
  if (--group_depth > 0) return ncclSuccess;
  for (Work& work : group_receives) submit(std::move(work));
  group_receives.clear();
  return ncclSuccess;
}

ncclResult_t abort_comm(ncclComm_t) { return ncclSuccess; }
ncclResult_t async_error(ncclComm_t, ncclResult_t* to) { return *to = ncclSuccess, ncclSuccess; }
const char* error_string(ncclResult_t) { return "error of the emulated NCCL"; }
const char* last_error(ncclComm_t) { return ""; }

}  // namespace

void open_links(int ranks) {
  const auto n = static_cast<size_t>(ranks);
  links().fds.assign(n, std::vector<int>(n, -1));
  for (size_t a = 0; a < n; ++a) {
    for (size_t b = a + 1; b < n; ++b) {
      int pair[2];
      if (::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) std::abort();
      links().fds[a][b] = pair[0];
      links().fds[b][a] = pair[1];
    }
  }
}

void close_links() {
  for (const std::vector<int>& of_rank : links().fds) {
    for (const int fd : of_rank) {
      if (fd >= 0) ::close(fd);
    }
  }
}

void become_rank(int rank) {
  Links& l = links();
  l.rank = rank;
  const std::vector<int> own = std::exchange(l.fds[static_cast<size_t>(rank)], {});
  close_links();
  for (size_t peer = 0; peer < own.size(); ++peer)
    l.peers.push_back(own[peer] < 0 ? nullptr : std::make_unique<Link>(static_cast<int>(peer), own[peer]));
}

void flush_links() {
  for (const auto& peer : links().peers) {
    if (peer) peer->flush();
  }
}

}  // namespace trainctl::emulator

namespace trainctl {

const NcclLibrary& nccl_library() {
  using namespace emulator;
  static const NcclLibrary library = {version,     unique_id,         init_rank,      split,       abort_comm,
                                      async_error, error_string,      last_error,     group_start, group_end,
                                      all_reduce,  all_gather,        reduce_scatter, broadcast,   send,
                                      recv,        NCCL_VERSION_CODE, "emulated"};
  return library;
}

}  // namespace trainctl
