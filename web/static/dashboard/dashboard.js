import { startPage } from "../common/page.js";
import strings from "./strings.js";

startPage({ name: "dashboard", strings });
