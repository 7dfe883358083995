// A transport of Gloo whose links are TLS 1.3 connections: third parties can neither read nor change messages between
// ranks of different hosts, and peers without the token of the job get no link.
//
// Each device listens once. Of two ranks the lower one dials; it names the link that it wants by 16 random bytes, which
// the other has published in the store. Receivers ask, senders answer, so no bytes arrive before there is memory for
// them.
//
//   message := kind, slot, bytes (3 x 8 bytes), and with `sends` the bytes themselves
//   asks    the peer may send this number of bytes for this slot
//   sends   here they are
//
// Numbers are in the byte order of the host: all hosts of a job have one architecture.
#pragma once

#include <memory>
#include <string>

namespace gloo::transport {
class Device;
}

namespace trainctl::comm {

struct TlsDeviceOptions {
  std::string hostname;  ///< to listen on; peers reach it by this address
  std::string token;     ///< a secret that all ranks of the job have
};

/// Throws EnvError where it cannot listen.
std::shared_ptr<gloo::transport::Device> make_tls_device(const TlsDeviceOptions& options);

}  // namespace trainctl::comm
