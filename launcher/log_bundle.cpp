// Packs a run folder and a description of its host.
#include "launcher/log_bundle.h"

#include <sys/statvfs.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/spec/parse.h"
#include "launcher/host_facts.h"
#include "launcher/tar_gz.h"

namespace trainctl {
namespace fs = std::filesystem;
namespace {

/// The versions, host, memory and disk, a line each.
std::string about(const RunDirectory& run, const std::string& version) {
  struct sysinfo memory {};
  sysinfo(&memory);
  struct statvfs disk {};
  statvfs(run.path().c_str(), &disk);
  const auto bytes = [](auto count, auto unit) {
    return format_bytes(static_cast<int64_t>(count) * static_cast<int64_t>(unit));
  };
  char now[64];
  const time_t seconds = std::time(nullptr);
  std::tm utc{};
  std::strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&seconds, &utc));
  std::string text;
  const auto line = [&](const std::string& name, const std::string& value) {
    text += name + ":" + std::string(10 - name.size(), ' ') + value + "\n";
  };
  const HostFacts host = host_facts();
  line("trainctl", version);
  line("run", fs::absolute(run.path()).lexically_normal().string() + ", " + std::string(to_string(state_of(run))));
  line("packed", now);
  line("host", host.name);
  line("system", host.system);
  line("kernel", host.kernel);
  line("cpu", std::to_string(host.cpus) + " x " + host.cpu);
  line("memory", format_bytes(host.memory_bytes) + ", free " + bytes(memory.freeram, memory.mem_unit));
  line("disk", bytes(disk.f_blocks, disk.f_frsize) + ", free " + bytes(disk.f_bavail, disk.f_frsize));
  line("gpu driver", host.gpu_driver.empty() ? "none" : host.gpu_driver);
  return text;
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw EnvError("cannot read " + path);
  return text.str();
}

}  // namespace

int64_t write_bundle(const RunDirectory& run, const std::string& path, const std::string& version) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::recursive_directory_iterator at(run.path(), error), end; !error && at != end; at.increment(error)) {
    if (at->symlink_status().type() == fs::file_type::regular) files.push_back(at->path());
  }
  if (error) throw EnvError("cannot read " + run.path() + ": " + error.message());
  std::sort(files.begin(), files.end());
  const std::string folder = "run-" + std::to_string(run.run()) + "/";
  TarGz tar(path);
  tar.add_text(folder + "about.txt", about(run, version));
  for (const std::string& file : files) {
    if (file == path) continue;
    const std::string name = file.substr(run.path().size() + 1);
    // The bundle may be shared with people who must not see the values of env.
    if (name == "job.yaml")
      tar.add_text(folder + name, hide_env(read_text(file)));
    else
      tar.add_file(folder + name, file);
  }
  return tar.finish();
}

}  // namespace trainctl
