// This program as it is copied to a host where it is not installed: the binary, the shared libraries that it has
// loaded, and the dynamic loader. Its name is the SHA-256 of all of them.
//
//   bin/trainctl   lib/ld-linux-x86-64.so.2   lib/libc.so.6   …          ~/.cache/trainctl/bin/<name>/ on the host
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace trainctl::hosts {

struct Bundle {
  struct File {
    std::string path;  ///< here
    std::string name;  ///< in the bundle
  };
  std::string name;     ///< 64 hexadecimal digits
  std::string loader;   ///< "ld-linux-x86-64.so.2"
  std::string machine;  ///< output of `uname -m`
  std::vector<File> files;
};

/// Throws EnvError.
Bundle bundle_of_this_program();

/// Writes it as a tar archive. False: it could not be read or written. Blocks.
bool write_tar(const Bundle& bundle, int fd);

}  // namespace trainctl::hosts
