// Names the files where `trainctl verify` writes certificates, and where a run stores that of its job.
#include "cli/run/saves/certificates.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/output_file.h"
#include "engine/train/files/input_file.h"

namespace trainctl {
namespace {

constexpr const char* kCertificate = "certificate";

}  // namespace

std::string certificate_folder(const JobSpec& spec) { return spec.launch.log_dir + "/certificates"; }

std::string write_certificate(const Certificate& certificate, const std::string& page, const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw EnvError("cannot create " + folder + ": " + error.message());
  const std::string path = folder + "/" + certificate.digest;
  write_output(path + ".html", page);
  write_output(path + ".json", to_json(certificate).dump(2) + "\n");
  return path + ".json";
}

std::string store_certificate(const JobSpec& planned, const std::string& checkpoints) {
  const std::string found = certificate_folder(planned) + "/" + job_digest(planned);
  if (!std::filesystem::exists(found + ".json")) return "";
  try {
    const std::string text = read_whole_file(found + ".json");
    if (certificate_of(text, found + ".json").trainctl != TRAINCTL_VERSION) return "";
    write_output(checkpoints + "/" + kCertificate + ".json", text);
    if (std::filesystem::exists(found + ".html"))
      write_output(checkpoints + "/" + kCertificate + ".html", read_whole_file(found + ".html"));
    return "";
  } catch (const EnvError& error) {
    return std::string("the certificate of the job is not stored with the checkpoints: ") + error.what();
  }
}

std::optional<Certificate> certificate_beside(const std::string& checkpoint) {
  const std::string path =
      (std::filesystem::absolute(checkpoint) / ".." / (std::string(kCertificate) + ".json")).lexically_normal();
  if (!std::filesystem::exists(path)) return std::nullopt;
  return certificate_of(read_whole_file(path), path);
}

}  // namespace trainctl
