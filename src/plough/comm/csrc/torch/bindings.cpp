// What Python sees. Everything that decides anything about a group is in comm/backend.py.

#include <torch/csrc/utils/pybind.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <pybind11/stl.h>

#include "../core/plugin_link.h"
#include "../core/reduce.h"
#include "backend.h"
#include "gloo_link.h"

namespace py = pybind11;

namespace plough {
namespace {

template <typename T>
using Shared = std::shared_ptr<T>;

c10::intrusive_ptr<CclBackend> make_backend(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, const Shared<Segment>& segment,
    const std::vector<std::pair<int, int>>& places, const std::vector<std::string>& names, const std::string& host,
    double timeout_s, const std::optional<c10::intrusive_ptr<c10d::Backend>>& link,
    const std::optional<std::pair<std::string, uint64_t>>& plugin,
    const std::optional<c10::intrusive_ptr<c10d::Backend>>& flat, const std::vector<std::string>& leaders, double spin_us,
    double yield_us, int workers, const std::vector<int>& worker_cpus, bool direct) {
  BackendConfig config;
  for (const auto& [where, index] : places) config.places.push_back({where, index});
  config.host = host;
  config.names = names;
  config.timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1000));
  config.tuning.patience.spin = std::chrono::nanoseconds(static_cast<int64_t>(spin_us * 1000));
  config.tuning.patience.yield = std::chrono::nanoseconds(static_cast<int64_t>(yield_us * 1000));
  config.tuning.workers = workers;
  config.tuning.worker_cpus = worker_cpus;
  config.direct = direct;
  std::unique_ptr<Link> between;
  if (plugin.has_value())
    between.reset(new PluginLink(plugin->first, reinterpret_cast<void*>(plugin->second), leaders));
  if (link.has_value()) between.reset(new GlooLink(*link, leaders));
  try {
    return c10::make_intrusive<CclBackend>(store, rank, segment, std::move(between),
                                           flat.value_or(c10::intrusive_ptr<c10d::Backend>()), config);
  } catch (const Error&) {
    std::rethrow_exception(as_torch_error(std::current_exception()));
  }
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  py::class_<Segment, Shared<Segment>>(module, "Segment")
      .def_static("create", &Segment::create, py::arg("ranks"), py::arg("world"), py::arg("slot_bytes"), py::arg("token"))
      .def_static("attach", &Segment::attach, py::arg("pid"), py::arg("fd"), py::arg("token"))
      .def_property_readonly("fd", &Segment::fd);

  py::class_<CclBackend, c10d::Backend, c10::intrusive_ptr<CclBackend>>(module, "CclBackend")
      .def(py::init(&make_backend), py::arg("store"), py::arg("rank"), py::arg("segment"), py::arg("places"),
           py::arg("names"), py::arg("host"), py::arg("timeout_s"), py::arg("link"), py::arg("plugin"), py::arg("flat"), py::arg("leaders"),
           py::arg("spin_us"), py::arg("yield_us"), py::arg("workers"), py::arg("worker_cpus"), py::arg("direct"),
           py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("options", &CclBackend::getBackendOptions)
      .def("facts", &CclBackend::facts);

  module.def("reduce_isa", &reduce_isa);
  module.def("set_reduce_isa", &set_reduce_isa, py::arg("isa"));
}

}  // namespace plough
