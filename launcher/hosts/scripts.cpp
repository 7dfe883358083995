// Scripts that run on a host before this program.
#include "launcher/hosts/scripts.h"

#include "engine/base/error.h"

namespace trainctl::hosts {
namespace {

constexpr const char* kCache = "${XDG_CACHE_HOME:-$HOME/.cache}/trainctl/bin";

/// A script that executes `trainctl agent` with these words through the bundle's loader.
std::string script_of(const Bundle& bundle, const std::string& words) {
  const std::string at = std::string("d=\"") + kCache + "/" + bundle.name + "\"; ";
  return at + "m=$(uname -m); if test \"$m\" != " + bundle.machine + "; then echo " + kWrongMachine + " $m; " +
         "elif test -x \"$d/bin/trainctl\"; then exec \"$d/lib/" + bundle.loader +
         "\" --library-path \"$d/lib\" \"$d/bin/trainctl\" agent " + words + "; else echo " + kNotInstalled + "; fi";
}

}  // namespace

std::string agent_script(const Bundle& bundle, const std::string& id, bool may_start) {
  return script_of(bundle, id + (may_start ? "" : " --join") + " --installed \"$d\" --loader " + bundle.loader);
}

std::string probe_script(const Bundle& bundle, const std::string& interface) {
  const bool is_name = interface.find_first_not_of(
                           "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:@") == std::string::npos;
  if (!is_name) throw EnvError("'" + interface + "' is not an interface name (launch.interface)");
  return script_of(bundle, "probe" + (interface.empty() ? "" : " --interface " + interface));
}

std::string reach_script(const Bundle& bundle, const std::string& address_and_port) {
  return script_of(bundle, "reach --to " + address_and_port);
}

std::string install_script(const Bundle& bundle) {
  // A truncated tar ends between files, so the presence of the last file shows that all are complete.
  return std::string("umask 077; d=\"") + kCache + "\"; mkdir -p \"$d\" && t=$(mktemp -d \"$d/." + bundle.name +
         ".XXXXXX\") || exit 1; tar -xf - -C \"$t\" && test -f \"$t/" + bundle.files.back().name +
         "\" && chmod -R u+rwX,a+rX \"$t\" && "
         "if test -d \"$d/" +
         bundle.name + "\"; then rm -rf \"$t\"; else mv -T \"$t\" \"$d/" + bundle.name +
         "\"; fi || { rm -rf \"$t\"; test -d \"$d/" + bundle.name + "\"; }";
}

}  // namespace trainctl::hosts
