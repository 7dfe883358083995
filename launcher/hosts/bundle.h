// This program in the form in which it is copied to hosts where it is not installed: the binary, its loaded shared
// libraries, and the dynamic loader. The bundle's name is the SHA-256 of all of them.
//
//   bin/trainctl   lib/ld-linux-x86-64.so.2   lib/libc.so.6   …          ~/.cache/trainctl/bin/<name>/ on the host
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace trainctl::hosts {

struct Bundle {
  struct File {
    std::string path;  ///< path on this host
    std::string name;  ///< in the bundle
  };
  std::string name;     ///< 64 hexadecimal digits
  std::string loader;   ///< "ld-linux-x86-64.so.2"
  std::string machine;  ///< output of `uname -m`
  std::vector<File> files;
};

/// Throws EnvError.
Bundle bundle_of_this_program();

/// Writes the bundle as a tar archive; returns false if a file could not be read or written. Blocks.
bool write_tar(const Bundle& bundle, int fd);

}  // namespace trainctl::hosts
