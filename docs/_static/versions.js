/* Make a menu of the version in the sidebar, and mark pages of other versions than the newest release.
 *
 * versions.json lies above the folder of each version; docs/publish.py writes it. Where it cannot be read, as from file:,
 * the version stays plain text. */
"use strict";

const place = document.querySelector(".versions");
const root = new URL(place.dataset.root, location.href);
const list = new URL("../versions.json", root);

/* Return the same page of another version if it exists, else the first page. */
async function pageOf(version) {
  const first = new URL(version.url, list);
  const same = new URL(location.pathname.slice(root.pathname.length), first);
  const exists = await fetch(same, { method: "HEAD" }).then((answer) => answer.ok, () => false);
  return exists ? same : first;
}

function showMenu(versions) {
  const menu = document.createElement("select");
  for (const version of versions) {
    const isShown = version.version === place.dataset.version;
    menu.add(new Option(version.name, version.version, isShown, isShown));
  }
  menu.addEventListener("change", async () => location.assign(await pageOf(versions[menu.selectedIndex])));
  const label = document.createElement("label");
  label.append("Version ", menu);
  place.replaceChildren(label);
}

/* The banner of the development version is in its pages; that of an old version is known only from the list. */
function showBanner(newest) {
  let banner = document.querySelector(".announcement-content");
  if (!banner) {
    const announcement = document.createElement("div");
    announcement.className = "announcement";
    banner = document.createElement("aside");
    banner.className = "announcement-content";
    banner.textContent = `This is the documentation of version ${place.dataset.version}.`;
    announcement.append(banner);
    document.querySelector(".page").before(announcement);
  }
  const link = document.createElement("a");
  link.href = new URL(newest.url, list);
  link.textContent = `See version ${newest.version}`;
  banner.append(" ", link, ".");
}

async function show() {
  const answer = await fetch(list, { cache: "no-cache" });
  if (!answer.ok) return;
  const versions = await answer.json();
  if (!versions.some((version) => version.version === place.dataset.version)) return;
  const newest = versions.find((version) => version.preferred);
  showMenu(versions);
  if (newest && newest.version !== place.dataset.version) showBanner(newest);
}

if (location.protocol !== "file:") show();
