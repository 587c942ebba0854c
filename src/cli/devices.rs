//! `tinderbox devices`: what this binary can compute on, here.

use std::fmt::Write as _;
use std::io::{self, Write};

use serde::Serialize;

use super::note;
use crate::device::{self, AdapterKind, Backend, DeviceListing, DeviceSpec};

/// What `tinderbox devices` is asked for.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  tinderbox train my.toml --device wgpu:0    with a name of the first column")]
pub struct Args {
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// The object that `--json` prints.
#[derive(Serialize)]
struct Report {
    devices: Vec<DeviceListing>,
    /// What `auto` would take; none in a binary without a CPU backend and without a GPU.
    auto: Option<String>,
    cpu: Option<String>,
    /// The backends that this binary was built with.
    features: Vec<Backend>,
}

/// Lists the devices.
///
/// # Errors
/// If standard output cannot be written to.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let report = Report {
        devices: device::list(),
        auto: device::resolve(&DeviceSpec::Auto).ok(),
        cpu: device::resolve(&DeviceSpec::Cpu).ok(),
        features: device::compiled(),
    };
    let mut stdout = io::stdout().lock();
    if args.json {
        writeln!(stdout, "{}", serde_json::to_string(&report)?)?;
        return Ok(());
    }
    write!(stdout, "{}", table(&report.devices))?;
    writeln!(stdout)?;
    for (name, device) in [("auto", &report.auto), ("cpu", &report.cpu)] {
        writeln!(
            stdout,
            "{name:<4}  takes {}",
            device.as_deref().unwrap_or("nothing: there is none")
        )?;
    }
    if !has_gpu(&report.devices) {
        note(
            "hint: no GPU was found; if this machine has one, install its driver. All works on the CPU too.",
        );
    }
    Ok(())
}

fn has_gpu(devices: &[DeviceListing]) -> bool {
    devices.iter().filter_map(|device| device.kind).any(AdapterKind::is_gpu)
}

/// One line per device, in columns as wide as what stands in them.
fn table(devices: &[DeviceListing]) -> String {
    let mut rows = vec![["DEVICE", "KIND", "API", "NAME"].map(str::to_owned)];
    for device in devices {
        let name = device.name.as_deref();
        let last = match (&device.unavailable, name) {
            (Some(reason), Some(name)) => format!("{name}; {reason}"),
            (Some(reason), None) => reason.clone(),
            (None, name) => name.unwrap_or("-").to_owned(),
        };
        rows.push([
            device.device.clone(),
            device.kind.map_or("-", AdapterKind::name).to_owned(),
            device.api.map_or("-", device::Api::name).to_owned(),
            last,
        ]);
    }
    let width =
        |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let (first, second, third) = (width(0), width(1), width(2));
    let mut table = String::new();
    for [device, kind, api, last] in &rows {
        writeln!(table, "{device:<first$}  {kind:<second$}  {api:<third$}  {last}")
            .expect("a string takes any text");
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(device: &str, backend: Backend, kind: Option<AdapterKind>) -> DeviceListing {
        DeviceListing {
            device: device.to_owned(),
            backend,
            name: kind.map(|_| "A Card".to_owned()),
            api: kind.map(|_| device::Api::Vulkan),
            kind,
            unavailable: kind.is_none().then(|| "not in this binary".to_owned()),
        }
    }

    #[test]
    fn columns_line_up() {
        let devices = [
            listing("wgpu:0", Backend::Wgpu, Some(AdapterKind::Software)),
            listing("cuda", Backend::Cuda, None),
        ];
        assert_eq!(
            table(&devices),
            "DEVICE  KIND      API     NAME\n\
             wgpu:0  software  Vulkan  A Card\n\
             cuda    -         -       not in this binary\n"
        );
    }

    #[test]
    fn a_software_adapter_is_no_gpu() {
        assert!(!has_gpu(&[listing("wgpu:0", Backend::Wgpu, Some(AdapterKind::Software))]));
        assert!(has_gpu(&[listing("wgpu:0", Backend::Wgpu, Some(AdapterKind::Discrete))]));
    }
}
