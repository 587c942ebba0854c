//! `tinderbox devices`: lists the devices.

use serde::Serialize;
use tinderbox_kernels::SimdLevel;

use super::paint::n_columns;
use super::print::{note, print_json, print_table};
use crate::device::{self, AdapterKind, Backend, DeviceListing, DeviceSpec};
use crate::format::or_dash;
use crate::view::terminal::table::table;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  tinderbox train my.toml --device wgpu:0    a name from the first column")]
pub(super) struct Args {
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    devices: Vec<DeviceListing>,
    /// The device that `auto` selects; `None` without a CPU backend and without a GPU.
    auto: Option<String>,
    cpu: Option<String>,
    features: Vec<Backend>,
    /// The SIMD level of the CPU kernels.
    simd: &'static str,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let report = Report {
        devices: device::list(),
        auto: device::resolve(&DeviceSpec::Auto).ok(),
        cpu: device::resolve(&DeviceSpec::Cpu).ok(),
        features: device::compiled(),
        simd: SimdLevel::current()?.name(),
    };
    if args.json {
        return print_json(&report);
    }
    let [auto, cpu] =
        [&report.auto, &report.cpu].map(|device| device.as_deref().unwrap_or("no device: none was found"));
    let (devices, simd) = (listed(&report.devices, n_columns()), report.simd);
    print_table(&format!("{devices}\nauto  takes {auto}\ncpu   takes {cpu}\nsimd  {simd}\n"))?;
    if !report.devices.iter().filter_map(|device| device.kind).any(AdapterKind::is_gpu) {
        note("hint: no GPU was found; if this machine has one, install its driver. Everything also works on the CPU.");
    }
    Ok(())
}

fn listed(devices: &[DeviceListing], n_columns: usize) -> String {
    let rows: Vec<_> = devices
        .iter()
        .map(|device| {
            let details = [&device.name, &device.unavailable].into_iter().flatten();
            let details = details.cloned().reduce(|name, unavailable| name + "; " + &unavailable);
            [
                device.device.clone(),
                or_dash(device.kind.map(|kind| kind.to_string())),
                or_dash(device.api.map(|api| api.to_string())),
                or_dash(details),
            ]
        })
        .collect();
    table("DEVICE | KIND | API | NAME", &rows, n_columns)
}
