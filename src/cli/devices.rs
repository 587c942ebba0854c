//! `tinderbox devices`: lists the devices.

use std::io::{self, Write};

use serde::Serialize;

use super::note;
use crate::device::{self, AdapterKind, Backend, DeviceListing, DeviceSpec};
use crate::draw::table::{Column, table};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  tinderbox train my.toml --device wgpu:0    with a name of the first column")]
pub(super) struct Args {
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Report {
    devices: Vec<DeviceListing>,
    /// `None` in a binary without a CPU backend, on a machine without a GPU.
    auto: Option<String>,
    cpu: Option<String>,
    features: Vec<Backend>,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
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
    writeln!(stdout, "{}", listed(&report.devices))?;
    for (name, device) in [("auto", &report.auto), ("cpu", &report.cpu)] {
        let device = device.as_deref().unwrap_or("nothing: there is none");
        writeln!(stdout, "{name:<4}  takes {device}")?;
    }
    if !has_gpu(&report.devices) {
        note("hint: no GPU was found; if this machine has one, install its driver. All works on the CPU too.");
    }
    Ok(())
}

fn has_gpu(devices: &[DeviceListing]) -> bool {
    devices.iter().filter_map(|device| device.kind).any(AdapterKind::is_gpu)
}

fn listed(devices: &[DeviceListing]) -> String {
    let rows: Vec<_> = devices
        .iter()
        .map(|device| {
            let details = [&device.name, &device.unavailable].into_iter().flatten();
            let details: Vec<&str> = details.map(String::as_str).collect();
            [
                device.device.clone(),
                device.kind.map_or("-", AdapterKind::name).to_owned(),
                device.api.map_or("-", device::Api::name).to_owned(),
                if details.is_empty() { "-".to_owned() } else { details.join("; ") },
            ]
        })
        .collect();
    table(["DEVICE", "KIND", "API", "NAME"].map(Column::Left), &rows)
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
        let devices =
            [listing("wgpu:0", Backend::Wgpu, Some(AdapterKind::Software)), listing("cuda", Backend::Cuda, None)];
        assert_eq!(
            listed(&devices),
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
